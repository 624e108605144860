"""What the verbs that use a model share: where it computes, how it searches, and how it is opened."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from regard.cli.options import OFF, Option, knob_options
from regard.config.data import ReadConfig
from regard.config.inference import DecodingConfig

if TYPE_CHECKING:
    from regard.pipeline.translation import TranslationPipeline


Item = TypeVar("Item")
FOLDER = click.Argument(["folder"], metavar="FOLDER")
FILES = click.Argument(["files"], nargs=-1, required=True, metavar="FILES…")
SPLIT = Option(
    ["--split"], is_flag=True, help="part each text into sentences first; otherwise a row is one, as in training"
)
ENSEMBLE = Option(
    ["--ensemble"], multiple=True, metavar="FOLDER", help="another model that decides too; may be repeated"
)
SEARCHING = knob_options(DecodingConfig, section="Search (defaults are those saved with the model)")
RANKING = [
    option
    for option in SEARCHING
    if getattr(option, "path", "") in ("length_penalty", "coverage_penalty", "batch_tokens")
]
READING = knob_options(ReadConfig, section="Reading files")
COMPUTING: list[click.Parameter] = [
    Option(["--device"], default="cpu", section="Computing", help="cpu, cuda, cuda:1 or mps [default: cpu]"),
    Option(
        ["--precision"],
        type=click.Choice(["float32", "bf16"]),
        default="float32",
        section="Computing",
        help="number format [default: float32]",
    ),
    Option(
        ["--threads"],
        type=click.IntRange(0),
        default=0,
        section="Computing",
        help="processor threads; 0: all cores [default: 0]",
    ),
    OFF,
]
ENGINE: list[click.Parameter] = [  # of what the engine computes, too
    Option(
        ["--backend"],
        type=click.Choice(["auto", "engine", "torch"]),
        default="auto",
        section="Computing",
        help="what computes; auto: the engine where it is there and fits [default: auto]",
    ),
    Option(
        ["--precision"],
        type=click.Choice(["float32", "bf16", "int8"]),
        section="Computing",
        help="number format; int8: the engine's, fastest [default: that of the folder; float32 as trained]",
    ),
    *(option for option in COMPUTING if option.name != "precision"),
]


@dataclass(frozen=True)
class TestSet:
    """Files that a model is scored on, how they are read, and where what it says goes."""

    folder: str
    files: tuple[str, ...]
    reading: ReadConfig
    computing: dict[str, Any]
    as_json: bool
    out: str | None = None
    errors: str | None = None  # a page about a classifier's mistakes
    unseen: str = "refuse"  # answers to stories that were unseen in training


WINDOW = 512  # texts that are sorted by length and translated together; progress is told after each such window


def iter_windows(texts: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield texts, or their numbers, some at a time."""
    return (texts[start : start + WINDOW] for start in range(0, len(texts), WINDOW))


def load_translation_pipeline(
    folder: str, computing: dict[str, Any], ensemble: tuple[str, ...] = ()
) -> TranslationPipeline:
    """Return the pipeline of a folder, or of several that translate together."""
    from regard.attention.intervention import active_intervention
    from regard.cli.output import note
    from regard.pipeline.load import load_translator

    model = load_translator(folder, ensemble=ensemble, **computing)
    if model.engines and active_intervention() is not None:
        note("heads are switched off: torch computes in float32, not the engine, which has no switches")
    gc.freeze()  # what is loaded stays: searching it for garbage again and again takes time
    return model
