"""Models that are ready for the engine: folders opened without torch, which is asked only when someone looks inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from regard.attention.intervention import active_intervention
from regard.attention.trace import is_tracing
from regard.checkpoint import atomic
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CONFIG, TASK_FILE, read_task_file, resolve_model_path, retry_while_replaced, verify
from regard.checkpoint.tokenizer_files import TARGET_TOKENIZER, TOKENIZER, check_vocabulary, read_tokenizer
from regard.config.models import BertConfig, GptConfig, TransformerConfig
from regard.engine import file, layout
from regard.engine.causal import CausalEngine, CausalEngineState
from regard.engine.encoder import EncoderEngine
from regard.engine.library import unavailable_reason
from regard.engine.translator import TranslatorEngine
from regard.errors import CheckpointError, UsageError
from regard.text.tokenizer import Tokenizer
from regard.tokens import Candidates, Ids, Tokens

if TYPE_CHECKING:
    from regard.models.base import EncoderDecoder
    from regard.models.bert import Bert
    from regard.models.gpt import Gpt


Floats = NDArray[np.float32]


class LazyProxy:
    """Something that is made when more is asked of it than is known beforehand.

    >>> text = LazyProxy(lambda: "abc", length=3)
    >>> text.length, text.upper()
    (3, 'ABC')
    """

    def __init__(self, make: Callable[[], Any], **known: Any) -> None:
        self.__dict__ |= known
        self._make, self._made = make, None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copies and pickles ask before anything is there
            raise AttributeError(name)
        return getattr(self.materialize(), name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.materialize()(*given, **named)

    def materialize(self) -> Any:
        """Return what it stands for."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def eval(self) -> LazyProxy:
        """Return it as it is: what is made is made for use."""
        return self


class SwitchingBackend:
    """A model that computes in the engine; torch answers while someone watches, or switches heads off."""

    def __init__(self, engine: Any, model: Any) -> None:
        self.engine, self.config, self._model = engine, engine.config, model

    def __getattr__(self, name: str) -> Any:  # whatever the engine does not have
        if name.startswith("__") or "_model" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._model, name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._model(*given, **named)

    @property
    def uses_torch(self) -> bool:
        """Whether torch answers now."""
        return is_tracing() or active_intervention() is not None

    def _answering(self) -> Any:
        return self._model if self.uses_torch else self.engine


class SwitchingEncoder(SwitchingBackend):
    """An encoder in the engine, or in torch."""

    def encode(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Return a state for each token, [N, D]."""
        made: Floats = self._answering().encode(tokens, token_types)
        return made

    def embed_texts(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> Floats:
        """Return one vector for each text, [B, D · poolings]."""
        made: Floats = self._answering().embed_texts(tokens, pooling)
        return made

    def pooler_output(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Return one state for each text, [B, D], of a model that has them."""
        made: Floats = self._answering().pooler_output(tokens, token_types)
        return made

    def logits(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Return the head's scores, of texts or of tokens."""
        made: Floats = self._answering().logits(tokens, token_types)
        return made


class SwitchingCausalLM(SwitchingBackend):
    """A causal language model in the engine, or in torch; a text is written to its end by the one that began it."""

    @property
    def vocab_size(self) -> int:
        """How many token numbers there are."""
        return int(self.engine.vocab_size)

    @property
    def eos_id(self) -> int:
        """The token that ends a text."""
        return int(self.engine.eos_id)

    bos_id = pad_id = eos_id

    def start(self, source: Tokens, room: int) -> Any:
        """Return the state before the first token to be written."""
        return self._answering().start(source, room)

    def step(self, tokens: Ids, state: Any, k: int) -> tuple[Candidates, Any]:
        """Return the best next tokens for each row, given one more token of each."""
        answering = self.engine if isinstance(state, CausalEngineState) else self._model
        made: tuple[Candidates, Any] = answering.step(tokens, state, k)
        return made


@dataclass(frozen=True)
class EngineFolder:
    """A folder that `convert --precision` made."""

    folder: Path
    path: Path
    stored: file.EngineFile
    task: dict[str, Any]

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Return the tokenizers of both sides, which may be one."""
        config = self.stored.config
        found = read_tokenizer(self.path / TOKENIZER)
        if isinstance(config, BertConfig | GptConfig):
            check_vocabulary(self.path, found, config.vocab_size)
            return found, found
        other = read_tokenizer(self.path / TARGET_TOKENIZER) if (self.path / TARGET_TOKENIZER).exists() else found
        check_vocabulary(self.path, found, config.source_vocab_size, "source")
        check_vocabulary(self.path, other, config.target_vocab_size, "target")
        return found, other

    def check_precision(self, precision: str | None) -> None:
        """Refuse another precision than the folder's."""
        if precision not in (None, self.stored.precision):
            raise UsageError(
                f"{self.folder} holds {self.stored.precision} weights, {precision} was asked for: leave it out"
            )

    def translator(self) -> tuple[TranslatorEngine, EncoderDecoder]:
        """Return the translator, in the engine and in torch; the latter is made when it is needed."""
        config = self.stored.config
        if not isinstance(config, TransformerConfig):
            raise UsageError(f"{self.folder}: {describe_family(config)}, where a translator is needed")
        engine = TranslatorEngine(config, self.stored.arrays, self.stored.precision)
        engine.shortlist = self.stored.shortlist
        known = {"vocab_size": config.target_vocab_size, "bos_id": config.bos_id, "eos_id": config.eos_id}
        model = LazyProxy(self.model, settings=config, config=config, pad_id=config.pad_id, packed=True, **known)
        return engine, cast("EncoderDecoder", model)

    def encoder(self, threads: int) -> SwitchingEncoder:
        """Return the encoder, in the engine and, when it is needed, in torch."""
        config = self.stored.config
        if not isinstance(config, BertConfig):
            raise UsageError(f"{self.folder}: {describe_family(config)}, where an encoder is needed")
        engine = EncoderEngine(config, self.stored.arrays, self.stored.precision, threads=threads)
        return SwitchingEncoder(engine, LazyProxy(self.model, config=config))

    def causal_lm(self) -> SwitchingCausalLM:
        """Return the causal language model, in the engine and, when it is needed, in torch."""
        config = self.stored.config
        if not isinstance(config, GptConfig):
            raise UsageError(f"{self.folder}: {describe_family(config)}, where a causal language model is needed")
        engine = CausalEngine(config, self.stored.arrays, self.stored.precision)
        return SwitchingCausalLM(engine, LazyProxy(self.model, config=config))

    def model(self) -> Any:
        """Return the model in torch, of the weights that the folder keeps, for use."""
        import torch

        from regard.models import build_model

        config = self.stored.config
        weights = layout.unpack_weights(config, self.stored.arrays, self.stored.precision)
        model = build_model(config)
        model.load_state_dict({name: torch.tensor(one) for name, one in weights.items()})
        return model.eval().pack()


def describe_family(config: layout.EngineConfig) -> str:
    """Return what a model is, for people."""
    names = {TransformerConfig: "a translator", BertConfig: "an encoder", GptConfig: "a causal language model"}
    return names[type(config)]


def is_engine_folder(folder: str | Path) -> bool:
    """Whether a folder was made for the engine."""
    place = resolve_model(folder)
    return place.is_dir() and (atomic.published_path(place) / file.FILE).is_file()


def open_engine_folder(folder: str | Path) -> EngineFolder:
    """Return what a folder for the engine holds, after checking all of it."""
    if why := unavailable_reason():
        raise UsageError(f"{folder} was made for the engine, which is not here: {why}")
    return retry_while_replaced(resolve_model(folder), _open)


def _open(folder: Path) -> EngineFolder:
    path = resolve_model_path(folder)
    verify(path, (CONFIG, file.FILE, TOKENIZER, TARGET_TOKENIZER, TASK_FILE))
    task = read_task_file(path)
    stored = file.read_engine_file(path / file.FILE)
    if isinstance(stored.config, TransformerConfig) and task.get("task") != "translate":
        raise CheckpointError(f"{path / TASK_FILE}: the file of a translator's folder is needed")
    return EngineFolder(folder, path, stored, task)


def gpt_in(model: SwitchingCausalLM) -> Gpt:
    """Return what answers as a causal language model, under that name."""
    return cast("Gpt", model)


def encoder_in(model: Bert | SwitchingEncoder) -> Bert:
    """Return what answers as an encoder, under that name for those who ask no more than its answers."""
    return cast("Bert", model)
