"""`regard translate`: translations of texts, of a file, or of standard input line by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import (
    DECODING_OPTIONS,
    ENGINE_OPTIONS,
    ENSEMBLE,
    SPLIT_TEXTS,
    load_translation_pipeline,
)
from regard.cli.options import Option, changed_settings
from regard.cli.texts import TextInput, process_texts, text_verb

if TYPE_CHECKING:
    from regard.decoding.constraints import Constraints
    from regard.pipeline.translation_result import Translation

HELP = """Translate TEXT, the lines of a file, or standard input line by line, in order.

\b
  regard translate runs/en-de "Two dogs run in the snow."
  regard translate runs/en-de --in big.txt --out big.de
  regard translate runs/en-de --nbest 3 --json < lines.txt
"""
CONSTRAINTS_SECTION = "Constraints"


@text_verb(
    HELP,
    [
        Option(["--align"], is_flag=True, help="Add word alignments (0-0 1-2 …) after a tab."),
        SPLIT_TEXTS,
        ENSEMBLE,
        Option(
            ["--target-prefix"],
            metavar="TEXT",
            section=CONSTRAINTS_SECTION,
            help="Prefix that each translation starts with.",
        ),
        Option(
            ["--force-word"],
            multiple=True,
            metavar="TEXT",
            section=CONSTRAINTS_SECTION,
            help="Word or phrase that each translation must contain; may be repeated.",
        ),
        Option(
            ["--forbid-word"],
            multiple=True,
            metavar="TEXT",
            section=CONSTRAINTS_SECTION,
            help="Word or phrase that no translation may contain; may be repeated.",
        ),
        Option(
            ["--glossary"],
            metavar="FILE",
            section=CONSTRAINTS_SECTION,
            help="Terms, one per line: source phrase, tab, target phrase that is forced where the source occurs.",
        ),
        *DECODING_OPTIONS,
        *ENGINE_OPTIONS,
    ],
    output=["regard.pipeline.translation_result:TranslationDict"],
)
def translate(
    context: click.Context,
    folder: str,
    inputs: TextInput,
    align: bool,
    split: bool,
    ensemble: tuple[str, ...],
    target_prefix: str | None,
    force_word: tuple[str, ...],
    forbid_word: tuple[str, ...],
    glossary: str | None,
    **load_options: Any,
) -> None:
    """Print the translation of each text."""
    options = {
        "split": split,
        "constraints": _build_constraints(force_word, forbid_word, glossary),
        "prefix": target_prefix or "",
        **changed_settings(context),
    }
    process_texts(
        inputs,
        lambda: load_translation_pipeline(folder, load_options, ensemble),
        lambda model, window: model.stream(window, **options),
        lambda _, index, translation: format_translation(translation, index, align),
        lambda translation: translation.to_dict(alignment=align),
    )


def _build_constraints(force: tuple[str, ...], forbid: tuple[str, ...], glossary: str | None) -> Constraints | None:
    if not (force or forbid or glossary):
        return None
    from regard.decoding.constraints import Constraints, Glossary

    return Constraints(force, forbid, Glossary.read(glossary) if glossary else None)


def format_translation(translation: Translation, index: int, align: bool) -> Iterator[str]:
    """Lines for one text: its translation, or its n-best list in the format `index ||| text ||| score`."""
    hypotheses = [translation, *translation.alternatives]
    for hypothesis in hypotheses:
        line = str(hypothesis)
        if len(hypotheses) > 1:
            line = f"{index} ||| {hypothesis} ||| {hypothesis.score:.4f}"
        yield f"{line}\t{hypothesis.pharaoh}" if align else line
