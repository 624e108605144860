"""`regard tag`: words of texts with their tags, and what these mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from regard.cli.models import COMPUTING, FOLDER
from regard.cli.options import Option, verb
from regard.cli.output import give, json_line, table, write_lines
from regard.cli.texts import GIVEN, given, put_each
from regard.config.data import ReadConfig

if TYPE_CHECKING:
    from regard.pipeline import TaggedText

HELP = """Tag the words of TEXT, of the lines of a file, or of standard input line by line.

What is found is given in order: number of the text, kind, exact words of the text, where they begin and end,
probability; parted by tabs. A model whose tags mark no entities gives every word with its tag.

\b
  regard tag runs/names "Ada Lovelace was born in London."
  regard tag runs/names --in news.txt --columns --out news.conll
  regard tag runs/names --json < news.txt
"""


@verb(
    HELP,
    [
        FOLDER,
        *GIVEN,
        Option(["--columns"], is_flag=True, help="give a word and its tag a line, a blank line after each text"),
        Option(["--words", "apart"], is_flag=True, help="words are what white space parts"),
        *COMPUTING,
    ],
)
def tag(
    context: click.Context,
    folder: str,
    texts: tuple[str, ...],
    source: str | None,
    out: str | None,
    encoding: str,
    columns: bool,
    apart: bool,
    as_json: bool,
    **computing: Any,
) -> None:
    """Tag what was given."""
    waiting = given(texts, source, encoding)
    from regard.pipeline import load_tagger

    model = load_tagger(folder, **computing)
    plain = not any(name.startswith("B-") for name in model.tags)
    put_each(
        waiting,
        out,
        model,
        lambda model, window: model.stream(window, apart=apart),
        lambda _, number, found: shown(found, number, columns or plain, as_json),
    )


def shown(found: TaggedText, number: int, columns: bool, as_json: bool) -> list[str]:
    """Return the lines for one text."""
    if as_json:
        return [json_line({"number": number, **found.to_dict()})]
    if columns:
        return [*(f"{word}\t{tag}" for word, tag in zip(found.words, found.tags, strict=True)), ""]
    return [
        "\t".join([str(number), one.kind, one.text, str(one.start), str(one.stop), f"{one.probability:.4f}"])
        for one in found.found
    ]


def evaluate_tags(
    folder: str, files: tuple[str, ...], reading: ReadConfig, out: str | None, as_json: bool, computing: dict[str, Any]
) -> None:
    """Tag a test set and give strict F1 of entities, by kind too."""
    from regard.data.tagged import read_tagged
    from regard.pipeline import load_tagger

    rows = read_tagged(files, reading)
    model = load_tagger(folder, **computing)
    rows.numbers(model.tags)  # an unknown tag is refused before anything is computed
    said = model.sentences(rows)
    if out:
        pairs = (zip(one.words, tags, strict=True) for one, tags in zip(rows.sentences, said, strict=True))
        write_lines(out, (line for pair in pairs for line in [*map("\t".join, pair), ""]))
    scores = model.scores(rows, said)
    lines = [
        f"{len(rows):,} sentences, F1 {scores['f1']:.2f} % (precision {scores['precision']:.2f} %, recall "
        f"{scores['recall']:.2f} %), {scores['accuracy']:.2f} % of the words have the right tag",
        *table([[kind, f"{value:.2f}"] for kind, value in scores["f1_by_kind"].items()]),
        model.account.line(),
    ]
    give({**scores, "account": model.account.to_dict()}, lines, as_json)
