"""`regard translate`: texts, a file, or standard input line by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import ENGINE, ENSEMBLE, SEARCHING, load_translation_pipeline
from regard.cli.options import Option, changed_settings
from regard.cli.output import json_line
from regard.cli.texts import TextInput, process_texts, text_verb

if TYPE_CHECKING:
    from regard.decoding.constraints import Constraints
    from regard.pipeline.translation import Translation

HELP = """Translate TEXT, the lines of a file, or standard input line by line, in order.

\b
  regard translate runs/en-de "Two dogs run in the snow."
  regard translate runs/en-de --in big.txt --out big.de
  regard translate runs/en-de --nbest 3 --json < lines.txt
"""
WORDS = "What it must say"


@text_verb(
    HELP,
    [
        Option(["--align"], is_flag=True, help="add word alignments (0-0 1-2 …) after a tab"),
        Option(["--no-split"], is_flag=True, help="take each text as one sentence"),
        ENSEMBLE,
        Option(["--prefix"], metavar="TEXT", section=WORDS, help="what each translation begins with"),
        Option(
            ["--force-word"],
            multiple=True,
            metavar="TEXT",
            section=WORDS,
            help="a word or phrase to force; may be repeated",
        ),
        Option(
            ["--forbid-word"],
            multiple=True,
            metavar="TEXT",
            section=WORDS,
            help="a word or phrase to forbid; may be repeated",
        ),
        Option(
            ["--glossary"],
            metavar="FILE",
            section=WORDS,
            help="source phrase, tab, target phrase: forced where the source has it",
        ),
        *SEARCHING,
        *ENGINE,
    ],
)
def translate(
    context: click.Context,
    folder: str,
    given: TextInput,
    align: bool,
    no_split: bool,
    ensemble: tuple[str, ...],
    prefix: str | None,
    force_word: tuple[str, ...],
    forbid_word: tuple[str, ...],
    glossary: str | None,
    **computing: Any,
) -> None:
    """Translate what was given."""
    words = _constraints(force_word, forbid_word, glossary)
    wishes = {"split": not no_split, "constraints": words, "prefix": prefix or "", **changed_settings(context)}
    process_texts(
        given,
        lambda: load_translation_pipeline(folder, computing, ensemble),
        lambda model, window: model.stream(window, **wishes),
        lambda _, number, translation: shown(translation, number, align, given.as_json),
    )


def _constraints(force: tuple[str, ...], forbid: tuple[str, ...], glossary: str | None) -> Constraints | None:
    if not (force or forbid or glossary):
        return None
    from regard.decoding.constraints import Constraints, Glossary

    return Constraints(force, forbid, Glossary.read(glossary) if glossary else None)


def shown(translation: Translation, number: int, align: bool, as_json: bool) -> Iterator[str]:
    """Yield the lines for one text: its translation, or its n-best list in the form `number ||| text ||| score`."""
    several = [translation, *translation.alternatives]
    if as_json:
        best, *rest = (facts(one, align) for one in several)
        yield json_line({"number": number, "source": translation.source, **best, "alternatives": rest})
        return
    for one in several:
        text = str(one) if len(several) == 1 else f"{number} ||| {one} ||| {one.score:.4f}"
        yield f"{text}\t{one.pharaoh}" if align else text


def facts(translation: Translation, align: bool) -> dict[str, Any]:
    """Return a translation as plain values."""
    found: dict[str, Any] = {"translation": str(translation), "score": round(translation.score, 6)}
    return {**found, "alignment": translation.pharaoh} if align else found
