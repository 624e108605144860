"""Models that are ready for the engine: folders opened without torch, which is asked only when someone looks inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from regard.attention.intervention import intervention
from regard.attention.trace import is_watched
from regard.checkpoint import files
from regard.checkpoint.location import CONFIG, TASK_FILE, any_task, opened, patiently, verify
from regard.checkpoint.published import local_folder
from regard.checkpoint.tokenizer_files import TARGET_TOKENIZER, TOKENIZER, check_vocabulary, read_tokenizer
from regard.config.gpt import GptConfig
from regard.config.model import EncoderConfig, TranslatorConfig
from regard.engine import file, layout
from regard.engine.encoder import EncoderEngine
from regard.engine.gpt import GptEngine, GptEngineState
from regard.engine.library import absence
from regard.engine.translator import Engine
from regard.errors import CheckpointError, UsageError
from regard.text.tokenizer import Tokenizer
from regard.tokens import Candidates, Ids, Tokens

if TYPE_CHECKING:
    from regard.models.encoder import Encoder
    from regard.models.gpt import Gpt
    from regard.models.writer import Writer

Floats = NDArray[np.float32]


class Deferred:
    """Something that is made when more is asked of it than is known beforehand.

    >>> text = Deferred(lambda: "abc", length=3)
    >>> text.length, text.upper()
    (3, 'ABC')
    """

    def __init__(self, make: Callable[[], Any], **known: Any) -> None:
        self.__dict__ |= known
        self._make, self._made = make, None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copies and pickles ask before anything is there
            raise AttributeError(name)
        return getattr(self.made(), name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.made()(*given, **named)

    def made(self) -> Any:
        """Return what it stands for."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def eval(self) -> Deferred:
        """Return it as it is: what is made is made for use."""
        return self


class Watchable:
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
    def in_torch(self) -> bool:
        """Whether torch answers now."""
        return is_watched() or intervention() is not None

    def _answering(self) -> Any:
        return self._model if self.in_torch else self.engine


class WatchableEncoder(Watchable):
    """An encoder in the engine, or in torch."""

    def encode(self, tokens: Tokens, types: Ids | None = None) -> Floats:
        """Return a state for each token, [N, D]."""
        made: Floats = self._answering().encode(tokens, types)
        return made

    def vectors(self, tokens: Tokens, pooling: Sequence[str] = ("mean",)) -> Floats:
        """Return one vector for each text, [B, D · poolings]."""
        made: Floats = self._answering().vectors(tokens, pooling)
        return made

    def pool(self, tokens: Tokens, types: Ids | None = None) -> Floats:
        """Return one state for each text, [B, D], of a model that has them."""
        made: Floats = self._answering().pool(tokens, types)
        return made

    def scores(self, tokens: Tokens, types: Ids | None = None) -> Floats:
        """Return the head's scores, of texts or of tokens."""
        made: Floats = self._answering().scores(tokens, types)
        return made


class WatchableGpt(Watchable):
    """A causal language model in the engine, or in torch; a text is written to its end by the one that began it."""

    @property
    def vocabulary(self) -> int:
        """How many token numbers there are."""
        return int(self.engine.vocabulary)

    @property
    def end_token(self) -> int:
        """The token that ends a text."""
        return int(self.engine.end_token)

    start_token = pad_token = end_token

    def start(self, source: Tokens, room: int) -> Any:
        """Return the state before the first token to be written."""
        return self._answering().start(source, room)

    def step(self, tokens: Ids, state: Any, k: int) -> tuple[Candidates, Any]:
        """Return the best next tokens for each row, given one more token of each."""
        answering = self.engine if isinstance(state, GptEngineState) else self._model
        made: tuple[Candidates, Any] = answering.step(tokens, state, k)
        return made


@dataclass(frozen=True)
class Ready:
    """A folder that `convert --precision` made."""

    folder: Path
    path: Path
    stored: file.Stored
    task: dict[str, Any]

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Return the tokenizers of both sides, which may be one."""
        config = self.stored.config
        found = read_tokenizer(self.path / TOKENIZER)
        if isinstance(config, EncoderConfig | GptConfig):
            check_vocabulary(self.path, found, config.vocabulary)
            return found, found
        other = read_tokenizer(self.path / TARGET_TOKENIZER) if (self.path / TARGET_TOKENIZER).exists() else found
        check_vocabulary(self.path, found, config.source_vocabulary, "source")
        check_vocabulary(self.path, other, config.target_vocabulary, "target")
        return found, other

    def check_precision(self, precision: str | None) -> None:
        """Refuse another precision than the folder's."""
        if precision not in (None, self.stored.precision):
            raise UsageError(
                f"{self.folder} holds {self.stored.precision} weights, {precision} was asked for: leave it out"
            )

    def translator(self) -> tuple[Engine, Writer]:
        """Return the translator, in the engine and in torch; the latter is made when it is needed."""
        config = self.stored.config
        if not isinstance(config, TranslatorConfig):
            raise UsageError(f"{self.folder}: {named(config)}, where a translator is needed")
        engine = Engine(config, self.stored.arrays, self.stored.precision)
        engine.shortlist = self.stored.shortlist
        known = {"vocabulary": config.target_vocabulary, "start_token": config.start, "end_token": config.end}
        model = Deferred(self.model, settings=config, config=config, pad_token=config.pad, packed=True, **known)
        return engine, cast("Writer", model)

    def encoder(self, threads: int) -> WatchableEncoder:
        """Return the encoder, in the engine and, when it is needed, in torch."""
        config = self.stored.config
        if not isinstance(config, EncoderConfig):
            raise UsageError(f"{self.folder}: {named(config)}, where an encoder is needed")
        engine = EncoderEngine(config, self.stored.arrays, self.stored.precision, threads=threads)
        return WatchableEncoder(engine, Deferred(self.model, config=config))

    def gpt(self) -> WatchableGpt:
        """Return the causal language model, in the engine and, when it is needed, in torch."""
        config = self.stored.config
        if not isinstance(config, GptConfig):
            raise UsageError(f"{self.folder}: {named(config)}, where a causal language model is needed")
        engine = GptEngine(config, self.stored.arrays, self.stored.precision)
        return WatchableGpt(engine, Deferred(self.model, config=config))

    def model(self) -> Any:
        """Return the model in torch, of the weights that the folder keeps, for use."""
        import torch

        from regard.models import build

        config = self.stored.config
        weights = layout.unpacked(config, self.stored.arrays, self.stored.precision)
        model = build(config)
        model.load_state_dict({name: torch.tensor(one) for name, one in weights.items()})
        return model.eval().pack()


def named(config: layout.EngineConfig) -> str:
    """Return what a model is, for people."""
    names = {TranslatorConfig: "a translator", EncoderConfig: "an encoder", GptConfig: "a causal language model"}
    return names[type(config)]


def is_ready(folder: str | Path) -> bool:
    """Whether a folder was made for the engine."""
    place = local_folder(folder)
    return place.is_dir() and (files.published(place) / file.FILE).is_file()


def open_ready(folder: str | Path) -> Ready:
    """Return what a folder for the engine holds, after checking all of it."""
    if why := absence():
        raise UsageError(f"{folder} was made for the engine, which is not here: {why}")
    return patiently(local_folder(folder), _open)


def _open(folder: Path) -> Ready:
    path = opened(folder)
    verify(path, (CONFIG, file.FILE, TOKENIZER, TARGET_TOKENIZER, TASK_FILE))
    task = any_task(path)
    stored = file.read(path / file.FILE)
    if isinstance(stored.config, TranslatorConfig) and task.get("task") != "translate":
        raise CheckpointError(f"{path / TASK_FILE}: the file of a translator's folder is needed")
    return Ready(folder, path, stored, task)


def gpt_in(model: WatchableGpt) -> Gpt:
    """Return what answers as a causal language model, under that name."""
    return cast("Gpt", model)


def encoder_in(model: Encoder | WatchableEncoder) -> Encoder:
    """Return what answers as an encoder, under that name for those who ask no more than its answers."""
    return cast("Encoder", model)
