"""Engine folders, opened without torch: a torch model is built only for traces and ablations."""

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
from regard.engine.description import EngineConfig
from regard.engine.encoder import EncoderEngine
from regard.engine.library import unavailable_reason
from regard.engine.translator import TranslatorEngine
from regard.errors import CheckpointError, UsageError
from regard.packed_tokens import Candidates, Ids, Tokens
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.models.base import EncoderDecoder
    from regard.models.bert import Bert
    from regard.models.gpt import Gpt


Floats = NDArray[np.float32]


class LazyProxy:
    """Builds an object on first access to an attribute that is not among the known ones.

    >>> text = LazyProxy(lambda: "abc", length=3)
    >>> text.length, text.upper()
    (3, 'ABC')
    """

    def __init__(self, build: Callable[[], Any], **attributes: Any) -> None:
        self.__dict__ |= attributes
        self._build = build
        self._object: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look up dunders before __init__ has run
            raise AttributeError(name)
        return getattr(self.materialize(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.materialize()(*args, **kwargs)

    def materialize(self) -> Any:
        """Build the object, once."""
        if self._object is None:
            self._object = self._build()
        return self._object

    def eval(self) -> LazyProxy:
        """Return the proxy itself: the object is built for inference."""
        return self


class SwitchingBackend:
    """A model that runs in the engine, or in torch while a trace or an ablation is active."""

    def __init__(self, engine: Any, model: Any) -> None:
        self.engine = engine
        self.config = engine.config
        self._torch_model = model

    def __getattr__(self, name: str) -> Any:  # what the engine does not have
        if name.startswith("__") or "_torch_model" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._torch_model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._torch_model(*args, **kwargs)

    @property
    def uses_torch(self) -> bool:
        """Whether torch computes now."""
        return is_tracing() or active_intervention() is not None

    @property
    def _active_model(self) -> Any:
        return self._torch_model if self.uses_torch else self.engine


class SwitchingEncoder(SwitchingBackend):
    """An encoder in the engine, or in torch."""

    def encode(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:  # [tokens, hidden]
        """Hidden states of all tokens."""
        hidden: Floats = self._active_model.encode(tokens, token_types)
        return hidden

    def embed_texts(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> Floats:  # [texts, hidden · poolings]
        """Embedding of each text."""
        embeddings: Floats = self._active_model.embed_texts(tokens, pooling)
        return embeddings

    def pooler_output(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:  # [texts, hidden]
        """Pooler output of each text."""
        pooled: Floats = self._active_model.pooler_output(tokens, token_types)
        return pooled

    def logits(self, tokens: Tokens, token_types: Ids | None = None) -> Floats:
        """Logits of the head, of texts or of tokens."""
        logits: Floats = self._active_model.logits(tokens, token_types)
        return logits


class SwitchingCausalLM(SwitchingBackend):
    """A causal language model in the engine, or in torch; the one that starts a text also completes it."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""
        return int(self.engine.vocab_size)

    @property
    def eos_id(self) -> int:
        """Token that ends a text."""
        return int(self.engine.eos_id)

    bos_id = pad_id = eos_id

    def start(self, source: Tokens, max_length: int) -> Any:
        """Prefill the prompts; return the state before the first generated token."""
        return self._active_model.start(source, max_length)

    def step(self, tokens: Ids, state: Any, k: int) -> tuple[Candidates, Any]:
        """Append one token to each row; return its `k` best next tokens."""
        model = self.engine if isinstance(state, CausalEngineState) else self._torch_model
        candidates, next_state = model.step(tokens, state, k)
        return candidates, next_state


@dataclass(frozen=True)
class EngineFolder:
    """A folder that `convert --precision` wrote."""

    folder: Path  # as the user names it
    path: Path  # of its files
    stored: file.EngineFile
    task: dict[str, Any]  # task.json

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Tokenizers of source and target, which may be the same."""
        config = self.stored.config
        source = read_tokenizer(self.path / TOKENIZER)
        if isinstance(config, BertConfig | GptConfig):
            check_vocabulary(self.path, source, config.vocab_size)
            return source, source
        target_path = self.path / TARGET_TOKENIZER
        target = read_tokenizer(target_path) if target_path.exists() else source
        check_vocabulary(self.path, source, config.source_vocab_size, "source")
        check_vocabulary(self.path, target, config.target_vocab_size, "target")
        return source, target

    def check_precision(self, precision: str | None) -> None:
        """Refuse another precision than the folder's."""
        if precision not in (None, self.stored.precision):
            raise UsageError(
                f"{self.folder} holds {self.stored.precision} weights, {precision} was requested: "
                "leave out the precision"
            )

    def translator(self) -> tuple[TranslatorEngine, EncoderDecoder]:
        """The translator in the engine, and a lazy one in torch."""
        config = self.stored.config
        if not isinstance(config, TransformerConfig):
            raise UsageError(f"{self.folder}: {describe_family(config)}, where a translator is needed")
        engine = TranslatorEngine(config, self.stored.arrays, self.stored.precision)
        engine.shortlist = self.stored.shortlist
        model = LazyProxy(
            self.model,
            settings=config,
            config=config,
            packed=True,
            vocab_size=config.target_vocab_size,
            bos_id=config.bos_id,
            eos_id=config.eos_id,
            pad_id=config.pad_id,
        )
        return engine, cast("EncoderDecoder", model)

    def encoder(self, threads: int) -> SwitchingEncoder:
        """The encoder in the engine, or in torch where needed."""
        config = self.stored.config
        if not isinstance(config, BertConfig):
            raise UsageError(f"{self.folder}: {describe_family(config)}, where an encoder is needed")
        engine = EncoderEngine(config, self.stored.arrays, self.stored.precision, threads=threads)
        return SwitchingEncoder(engine, LazyProxy(self.model, config=config))

    def causal_lm(self) -> SwitchingCausalLM:
        """The causal language model in the engine, or in torch where needed."""
        config = self.stored.config
        if not isinstance(config, GptConfig):
            raise UsageError(f"{self.folder}: {describe_family(config)}, where a causal language model is needed")
        engine = CausalEngine(config, self.stored.arrays, self.stored.precision)
        return SwitchingCausalLM(engine, LazyProxy(self.model, config=config))

    def model(self) -> Any:
        """Build the model in torch from the dequantized weights, for inference."""
        import torch

        from regard.models import build_model

        config = self.stored.config
        weights = layout.unpack_weights(config, self.stored.arrays, self.stored.precision)
        model = build_model(config)
        model.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
        return model.eval().pack()


def describe_family(config: EngineConfig) -> str:
    """Name of a model's family for messages, with an article."""
    names = {TransformerConfig: "a translator", BertConfig: "an encoder", GptConfig: "a causal language model"}
    return names[type(config)]


def is_engine_folder(folder: str | Path) -> bool:
    """Whether a folder holds engine weights."""
    path = resolve_model(folder)
    return path.is_dir() and (atomic.published_path(path) / file.ENGINE_FILE).is_file()


def open_engine_folder(folder: str | Path) -> EngineFolder:
    """Open and validate an engine folder."""
    if reason := unavailable_reason():
        raise UsageError(f"{folder} needs the engine, which is not available: {reason}")
    return retry_while_replaced(resolve_model(folder), _open)


def _open(folder: Path) -> EngineFolder:
    path = resolve_model_path(folder)
    verify(path, (CONFIG, file.ENGINE_FILE, TOKENIZER, TARGET_TOKENIZER, TASK_FILE))
    task = read_task_file(path)
    stored = file.read_engine_file(path / file.ENGINE_FILE)
    if isinstance(stored.config, TransformerConfig) and task.get("task") != "translate":
        raise CheckpointError(f"{path / TASK_FILE}: the task of a translator must be 'translate'")
    return EngineFolder(folder, path, stored=stored, task=task)


def as_gpt(model: SwitchingCausalLM) -> Gpt:
    """Cast to the type of the torch model, whose inference methods it has."""
    return cast("Gpt", model)


def as_bert(model: Bert | SwitchingEncoder) -> Bert:
    """Cast to the type of the torch model, whose inference methods it has."""
    return cast("Bert", model)
