"""What a run of the benches is asked for, and the sizes of its models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from regard.config.knob import Config, knob
from regard.config.model import EncoderConfig, StackConfig, TranslatorConfig
from regard.errors import ConfigError, nearest
from regard.machine import cores
from regard.text.tokenizer import SPECIALS

BENCHES = ("training", "recurrent", "masked", "fine-tuning", "translation", "latency", "encoding", "growth")
LIBRARIES = (
    "torch",
    "transformers",
    "trainer",
    "joeynmt",
    "eole",
    "ctranslate2",
    "onnxruntime",
    "openvino",
    "sentence-transformers",
)
QUICK = ("training", "translation", "latency", "encoding")  # that a quick run has unless it is told
QUICK_SECONDS = 150.0  # that a quick run plans for: it is to end within three minutes


@dataclass(frozen=True)
class Size:
    """A translator, the batches it is trained on and how much of it is measured."""

    name: str
    layers: int
    width: int
    heads: int
    feedforward: int
    vocabulary: int
    batch_tokens: int  # of a training batch
    steps: int  # updates of one turn
    sentences: int  # translated in one turn
    lone: int  # sentences translated one by one in a turn

    def config(self, **changes: object) -> TranslatorConfig:
        """Return the translator of this size, with some settings changed.

        >>> SIZES["base"].config(dropout=0.0).encoder.layers
        6
        """
        stack = StackConfig(layers=self.layers, heads=self.heads, feedforward=self.feedforward)
        made = TranslatorConfig(
            source_vocabulary=self.vocabulary,
            target_vocabulary=self.vocabulary,
            width=self.width,
            encoder=stack,
            decoder=stack,
        )
        return made.override(changes)


@dataclass(frozen=True)
class EncoderSize:
    """An encoder of texts."""

    name: str
    layers: int
    width: int
    heads: int
    feedforward: int
    vocabulary: int

    def config(self, **changes: object) -> EncoderConfig:
        """Return the encoder of this size, with some settings changed.

        >>> ENCODERS["minilm"].config(head="masked").stack.layers
        6
        """
        stack = StackConfig(layers=self.layers, heads=self.heads, feedforward=self.feedforward)
        made = EncoderConfig(vocabulary=self.vocabulary, width=self.width, stack=stack, pad=SPECIALS.index("<pad>"))
        return made.override({"pooler": False, **changes})


@dataclass(frozen=True)
class ReadSize(EncoderSize):
    """An encoder that reads, and how many texts it reads in a turn."""

    texts: int


@dataclass(frozen=True)
class TaughtSize(EncoderSize):
    """An encoder that learns, its batches and how many updates a turn has."""

    rows: int  # of a batch
    longest: int  # tokens of a row at most, the marks at its ends counted
    steps: int


SIZES = {
    "small": Size("small", 3, 256, 4, 1024, 10_000, 4096, 3, 500, 12),
    "base": Size("base", 6, 512, 8, 2048, 10_000, 2048, 2, 250, 8),
    "tiny": Size("tiny", 1, 32, 2, 64, 200, 128, 1, 8, 2),
}
ENCODERS = {
    "minilm": ReadSize("minilm", 6, 384, 12, 1536, 30_522, 512),
    "tiny": ReadSize("tiny", 1, 32, 2, 64, 200, 8),
}
MASKED = {
    "mini": TaughtSize("mini", 6, 256, 4, 1024, 10_000, 32, 128, 3),
    "tiny": TaughtSize("tiny", 1, 32, 2, 64, 200, 4, 16, 1),
}
TUNED = {
    "mini": TaughtSize("mini", 4, 256, 4, 1024, 10_000, 32, 128, 4),
    "tiny": TaughtSize("tiny", 1, 32, 2, 64, 200, 4, 16, 1),
}


@dataclass(frozen=True, kw_only=True)
class BenchConfig(Config):
    """Which benches are run, on what, and for how long.

    >>> BenchConfig(only="training,growth").benches()
    ['training', 'growth']
    >>> BenchConfig(quick=True).benches()
    ['training', 'translation', 'latency', 'encoding']
    """

    quick: bool = knob(False, "small models, fewer benches, rounds and peers: done within three minutes")
    only: str = knob("", f"benches to run, by commas, of {', '.join(BENCHES)}")
    size: str = knob(
        "both", "models to measure; both: small and base; tiny tries the command out", choices=("both", *SIZES)
    )
    peers: str = knob("", f"libraries to compare with, by commas, of {', '.join(LIBRARIES)}; none: every installed one")
    repeats: int = knob(0, "rounds; each visits everybody once; 0: 5, with --quick 3", low=0, high=1000)
    threads: int = knob(0, "processor threads of everybody; 0: all cores", low=0)
    eole_python: str = knob("", "the Python that Eole is installed in, where it is not this one")
    out: str = knob("runs/bench", "folder for bench.json and bench.svg")

    def check(self) -> None:
        _known("only", self.only, BENCHES)
        _known("peers", self.peers, LIBRARIES)

    def benches(self) -> list[str]:
        """Return the benches to run, in their usual order."""
        asked = [name for name in BENCHES if name in _split(self.only)]
        return asked or list(QUICK if self.quick else BENCHES)

    def libraries(self) -> list[str]:
        """Return the libraries to compare with, in their usual order."""
        return [name for name in LIBRARIES if name in _split(self.peers)] or list(LIBRARIES)

    def sizes(self) -> list[Size]:
        """Return the translators to measure."""
        both = ["small"] if self.quick else ["small", "base"]
        chosen = [SIZES[name] for name in (both if self.size == "both" else [self.size])]
        if not self.quick:
            return chosen
        return [replace(size, steps=1, sentences=min(128, size.sentences), lone=min(4, size.lone)) for size in chosen]

    def encoder(self) -> ReadSize:
        """Return the encoder to measure while it reads."""
        size = ENCODERS["tiny" if self.size == "tiny" else "minilm"]
        return replace(size, texts=min(256, size.texts)) if self.quick else size

    def masked(self) -> TaughtSize:
        """Return the encoder that learns to tell hidden words."""
        size = MASKED["tiny" if self.size == "tiny" else "mini"]
        return replace(size, rows=min(8, size.rows), steps=1) if self.quick else size

    def tuned(self) -> TaughtSize:
        """Return the encoder that learns to classify."""
        size = TUNED["tiny" if self.size == "tiny" else "mini"]
        return replace(size, steps=min(2, size.steps)) if self.quick else size

    @property
    def rounds(self) -> int:
        """How many rounds are counted."""
        return self.repeats or (3 if self.quick else 5)

    @property
    def processors(self) -> int:
        """How many threads everybody has."""
        return self.threads or cores()


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _known(field: str, text: str, known: Iterable[str]) -> None:
    for name in _split(text):
        if name not in known:
            raise ConfigError(f"{field} must name some of {', '.join(known)}, not {name!r}{nearest(name, known)}")
