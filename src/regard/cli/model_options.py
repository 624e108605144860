"""Options and helpers shared by the verbs that use a model: computing, decoding, reading data, loading."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from regard.cli.options import ABLATE, ALLOW_UNUSED, AutoNumber, Option, knob_options
from regard.config.data import ReadConfig
from regard.config.inference import DecodingConfig
from regard.metric_table import METRICS

if TYPE_CHECKING:
    from regard.pipeline.translation import TranslationPipeline


Item = TypeVar("Item")
MODEL_ARGUMENT = click.Argument(["folder"], metavar="MODEL")
FILES = click.Argument(["files"], nargs=-1, required=True, metavar="FILES…")


def _split_option(*, default: bool, other: str) -> Option:
    flag = "--split" if default else "--no-split"
    return Option(
        ["--split/--no-split"],
        default=default,
        help=f"Translate each sentence of a text by itself, or the text as one sentence. [default: {flag}; {other}]",
    )


SPLIT_TEXTS = _split_option(default=True, other="regard evaluate: --no-split")
SPLIT_ROWS = _split_option(default=False, other="regard translate: --split")  # of test sets


ENSEMBLE = Option(
    ["--ensemble"], multiple=True, metavar="MODEL", help="Another model of the ensemble; may be repeated."
)
SAMPLING = ("sample", "temperature", "top_k", "top_p", "seed")
SEARCH = tuple(knob.path for knob in DecodingConfig.knobs() if knob.path not in SAMPLING)
DECODING_OPTIONS = [
    *knob_options(DecodingConfig, section="Search (defaults, unless the model has its own)", skip=SAMPLING),
    *knob_options(DecodingConfig, section="Sampling", skip=SEARCH),
]
RANKING_OPTIONS = [
    option
    for option in DECODING_OPTIONS
    if getattr(option, "path", "") in ("length_penalty", "coverage_penalty", "batch_tokens")
]
ANY_FORMAT = "Format of tables and lines; auto: by the file extension. CoNLL, SQuAD and bAbI files need none."
READ_OPTIONS = knob_options(ReadConfig, section="Reading files", descriptions={"format": ANY_FORMAT})
PAIR_READ_OPTIONS = knob_options(  # of parallel texts
    ReadConfig, section="Reading files", skip=("text", "label", "pair", "label_separator")
)
TORCH_OPTIONS: list[click.Parameter] = [
    Option(
        ["--device"],
        default="cpu",
        section="Computing",
        metavar="NAME",
        help="Device: cpu, cuda, cuda:1 or mps. [default: cpu]",
    ),
    Option(
        ["--precision"],
        type=click.Choice(["float32", "bf16"]),
        default="float32",
        section="Computing",
        help="Precision of weights and activations. [default: float32]",
    ),
    Option(
        ["--threads"],
        type=AutoNumber(click.IntRange(1)),
        default="auto",
        section="Computing",
        help="Number of threads; auto: all cores. [default: auto]",
    ),
    ABLATE,
    ALLOW_UNUSED,
]


def _none_if_auto(context: click.Context, option: click.Parameter, value: str) -> str | None:
    return None if value == "auto" else value


ENGINE_OPTIONS: list[click.Parameter] = [  # for the models that the engine runs, too
    Option(
        ["--backend"],
        type=click.Choice(["auto", "engine", "torch"]),
        default="auto",
        section="Computing",
        help="Inference backend: engine (C++ runtime for CPUs, part of Regard) or torch; auto: the engine where it "
        "supports the model. [default: auto]",
    ),
    Option(
        ["--precision"],
        type=click.Choice(["auto", "float32", "bf16", "int8"]),
        default="auto",
        callback=_none_if_auto,
        section="Computing",
        help="Precision of weights and activations; auto: as stored in the model; int8: engine only. [default: auto]",
    ),
    *(option for option in TORCH_OPTIONS if option.name != "precision"),
]


@dataclass(frozen=True)
class TestSet:
    """Request to evaluate a model: test files, how they are read, and where predictions and reports go."""

    folder: str
    files: tuple[str, ...]
    read_config: ReadConfig
    load_options: dict[str, Any]
    as_json: bool
    out: str | None = None  # file for the predictions
    page: str | None = None  # page about a classifier's errors
    unknown_answers: str = "wrong"  # what to do with answers to stories that never occur in training
    ensemble: tuple[str, ...] = ()  # further translation models
    split: bool = False  # whether texts to translate are split into sentences
    decoding: Mapping[str, Any] = field(default_factory=dict)  # settings of the search
    metrics: tuple[str, ...] = ()  # names of further metrics

    def metric_lines(self, scores: Mapping[str, Any], *, shown: Sequence[str] = ()) -> list[str]:
        """Lines of the further metrics, for reading, without those that are `shown` anyway."""
        return [METRICS[name].format_value(scores[name]) for name in self.metrics if name not in shown]


Evaluate = Callable[[TestSet], None]
EVALUATIONS = "regard.cli.evaluation_output"  # types of what evaluations print as JSON
TEXT_FLAGS = (
    *("--encoding", "--lenient", "--max-reject", "--device", "--precision", "--threads", "--ablate"),
    *("--allow-unused", "--json"),
)
TABLE_FLAGS = ("--format", "--header", "--no-header", "--delimiter")
COLUMN_FLAGS = ("--text", "--label", "--pair", "--label-separator", *TABLE_FLAGS)


@dataclass(frozen=True)
class EvaluationCommand:
    """Evaluation of one task: what computes and prints the metrics, and the flags of `regard evaluate` that apply."""

    function: Evaluate
    flags: tuple[str, ...]
    output: Any = None  # type of the JSON object that `--json` prints, besides metrics by name

    def __call__(self, test: TestSet) -> None:
        """Evaluate a model."""
        self.function(test)


def evaluator(*flags: str, output: Any = None) -> Callable[[Evaluate], EvaluationCommand]:
    """Decorator of an evaluation, with the flags that apply to it and the type of its JSON output without metrics."""
    return lambda function: EvaluationCommand(function, flags, output)


WINDOW = 512  # texts that are sorted by length and processed together; progress is reported after each window


def iter_windows(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Split texts, or their indices, into windows."""
    return (items[start : start + WINDOW] for start in range(0, len(items), WINDOW))


def load_translation_pipeline(
    folder: str, load_options: dict[str, Any], ensemble: tuple[str, ...] = ()
) -> TranslationPipeline:
    """Load the pipeline of a folder, or of an ensemble."""
    from regard.pipeline.load import load_translator

    model = load_translator(folder, ensemble=ensemble, **load_options)
    gc.freeze()  # the model stays: repeated garbage collection over its objects takes time
    return model
