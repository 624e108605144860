"""Options of a benchmark run, and the sizes of its models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from regard.config.models import BertConfig, StackConfig, TransformerConfig
from regard.config.settings import AUTO, Config, knob
from regard.errors import ConfigError, nearest
from regard.hardware import available_cores
from regard.text.tokenizer import SPECIAL_TOKENS

BENCHMARKS = ("training", "recurrent", "masked", "fine-tuning", "translation", "latency", "encoding", "growth")
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
QUICK_BENCHMARKS = ("training", "translation", "latency", "encoding")  # default of --quick
QUICK_SECONDS = 150.0  # planned for --quick, which should end within three minutes


@dataclass(frozen=True)
class TranslatorSize:
    """A translator, its training batches, and how much is measured at once."""

    name: str
    layers: int
    hidden_size: int
    heads: int
    feed_forward_size: int
    vocab_size: int
    batch_tokens: int  # of a training batch
    steps: int  # updates in one measurement
    sentences: int  # translated in one measurement, in batches
    single_sentences: int  # translated in one measurement, one at a time

    def config(self, **changes: object) -> TransformerConfig:
        """Model config of this size, with changed settings.

        >>> TRANSLATOR_SIZES["base"].config(dropout=0.0).encoder.num_layers
        6
        """
        stack = StackConfig(num_layers=self.layers, num_heads=self.heads, feed_forward_size=self.feed_forward_size)
        config = TransformerConfig(
            source_vocab_size=self.vocab_size,
            target_vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            encoder=stack,
            decoder=stack,
        )
        return config.override(changes)


@dataclass(frozen=True)
class EncoderSize:
    """A BERT-like encoder."""

    name: str
    layers: int
    hidden_size: int
    heads: int
    feed_forward_size: int
    vocab_size: int

    def config(self, **changes: object) -> BertConfig:
        """Model config of this size, with changed settings.

        >>> EMBEDDING_SIZES["minilm"].config(head="masked").stack.num_layers
        6
        """
        stack = StackConfig(num_layers=self.layers, num_heads=self.heads, feed_forward_size=self.feed_forward_size)
        config = BertConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            stack=stack,
            pad_id=SPECIAL_TOKENS.index("<pad>"),
        )
        return config.override({"pooler": changes.get("head") == "label", **changes})


@dataclass(frozen=True)
class EmbeddingSize(EncoderSize):
    """An encoder that embeds texts."""

    texts: int  # embedded in one measurement


@dataclass(frozen=True)
class TrainedEncoderSize(EncoderSize):
    """An encoder that is trained."""

    batch_size: int  # texts
    max_length: int  # tokens of a text, special tokens included
    steps: int  # updates in one measurement


TRANSLATOR_SIZES = {
    "small": TranslatorSize("small", 3, 256, 4, 1024, 10_000, 4096, 3, 500, 12),
    "base": TranslatorSize("base", 6, 512, 8, 2048, 10_000, 2048, 2, 250, 8),
    "tiny": TranslatorSize("tiny", 1, 32, 2, 64, 200, 128, 1, 8, 2),
}
EMBEDDING_SIZES = {
    "minilm": EmbeddingSize("minilm", 6, 384, 12, 1536, 30_522, 512),
    "tiny": EmbeddingSize("tiny", 1, 32, 2, 64, 200, 8),
}
MASKED_LM_SIZES = {
    "mini": TrainedEncoderSize("mini", 6, 256, 4, 1024, 10_000, 32, 128, 3),
    "tiny": TrainedEncoderSize("tiny", 1, 32, 2, 64, 200, 4, 16, 1),
}
FINE_TUNING_SIZES = {
    "mini": TrainedEncoderSize("mini", 4, 256, 4, 1024, 10_000, 32, 128, 4),
    "tiny": TrainedEncoderSize("tiny", 1, 32, 2, 64, 200, 4, 16, 1),
}


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig(Config):
    """Which benchmarks run, on which models, against which libraries, and for how long.

    >>> BenchmarkConfig(only="training,growth").benchmarks()
    ['training', 'growth']
    >>> BenchmarkConfig(quick=True).benchmarks()
    ['training', 'translation', 'latency', 'encoding']
    """

    quick: bool = knob(False, "small models, fewer benchmarks, rounds and peers: done within three minutes")
    only: str = knob("", f"benchmarks to run, separated by commas, of {', '.join(BENCHMARKS)}")
    size: str = knob(
        "both",
        "models to measure; both: small and base; tiny tries the command out",
        choices=("both", *TRANSLATOR_SIZES),
    )
    peers: str = knob(
        "", f"libraries to compare with, separated by commas, of {', '.join(LIBRARIES)}; none: every installed one"
    )
    repeats: int = knob(0, "rounds; each asks every runner once; 0: 5, with --quick 3", low=0, high=1000)
    threads: int = knob(AUTO, "CPU threads of each runner; auto: all cores", low=1)
    eole_python: str = knob("", "the Python that Eole is installed in, where it is not this one")
    out: str = knob("runs/bench", "folder for bench.json and bench.svg")

    def check(self) -> None:
        _check_names("only", self.only, BENCHMARKS)
        _check_names("peers", self.peers, LIBRARIES)

    def benchmarks(self) -> list[str]:
        """Benchmarks to run, in their fixed order."""
        requested = [name for name in BENCHMARKS if name in _split(self.only)]
        return requested or list(QUICK_BENCHMARKS if self.quick else BENCHMARKS)

    def libraries(self) -> list[str]:
        """Libraries to compare with, in their fixed order."""
        return [name for name in LIBRARIES if name in _split(self.peers)] or list(LIBRARIES)

    def translator_sizes(self) -> list[TranslatorSize]:
        """Translators to measure."""
        both = ["small"] if self.quick else ["small", "base"]
        names = both if self.size == "both" else [self.size]
        sizes = [TRANSLATOR_SIZES[name] for name in names]
        return [_shrink_translator(size) for size in sizes] if self.quick else sizes

    def embedding_size(self) -> EmbeddingSize:
        """Encoder that embeds texts."""
        size = EMBEDDING_SIZES["tiny" if self.size == "tiny" else "minilm"]
        return replace(size, texts=min(256, size.texts)) if self.quick else size

    def masked_lm_size(self) -> TrainedEncoderSize:
        """Encoder that is trained as a masked language model."""
        size = MASKED_LM_SIZES["tiny" if self.size == "tiny" else "mini"]
        return replace(size, batch_size=min(8, size.batch_size), steps=1) if self.quick else size

    def fine_tuning_size(self) -> TrainedEncoderSize:
        """Encoder that is fine-tuned to classify."""
        size = FINE_TUNING_SIZES["tiny" if self.size == "tiny" else "mini"]
        return replace(size, steps=min(2, size.steps)) if self.quick else size

    @property
    def rounds(self) -> int:
        """Rounds that count."""
        return self.repeats or (3 if self.quick else 5)

    @property
    def num_threads(self) -> int:
        """Threads of each runner."""
        return self.threads or available_cores()


def _shrink_translator(size: TranslatorSize) -> TranslatorSize:
    return replace(
        size,
        steps=1,
        sentences=min(128, size.sentences),
        single_sentences=min(4, size.single_sentences),
    )


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _check_names(option: str, text: str, known: Iterable[str]) -> None:
    for name in _split(text):
        if name not in known:
            raise ConfigError(f"{option} must name some of {', '.join(known)}, not {name!r}{nearest(name, known)}")
