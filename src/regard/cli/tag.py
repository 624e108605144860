"""`regard tag`: words of texts with their tags, and what these mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import ENGINE, TestSet
from regard.cli.options import Option
from regard.cli.output import align_columns, json_line, print_result, write_lines
from regard.cli.texts import TextInput, process_texts, text_verb

if TYPE_CHECKING:
    from regard.pipeline.tagging import TaggedText, TokenClassificationPipeline

HELP = """Tag the words of TEXT, of the lines of a file, or of standard input line by line.

What is found is given in order: number of the text, kind, exact words of the text, where they begin and end,
probability; parted by tabs. A model whose tags mark no entities gives every word with its tag.

\b
  regard tag runs/names "Ada Lovelace was born in London."
  regard tag runs/names --in news.txt --columns --out news.conll
  regard tag runs/names --json < news.txt
"""


@text_verb(
    HELP,
    [
        Option(["--columns"], is_flag=True, help="give a word and its tag a line, a blank line after each text"),
        Option(["--words", "apart"], is_flag=True, help="words are what white space parts"),
        *ENGINE,
    ],
)
def tag(context: click.Context, folder: str, given: TextInput, columns: bool, apart: bool, **computing: Any) -> None:
    """Tag what was given."""

    def opened() -> TokenClassificationPipeline:
        from regard.pipeline.loaders import load_tagger

        return load_tagger(folder, **computing)

    process_texts(
        given,
        opened,
        lambda model, window: model.stream(window, is_pretokenized=apart),
        lambda model, number, found: shown(found, number, columns or not model.has_entities, given.as_json),
    )


def shown(found: TaggedText, number: int, columns: bool, as_json: bool) -> list[str]:
    """Return the lines for one text."""
    if as_json:
        return [json_line({"number": number, **found.to_dict()})]
    if columns:
        return [*(f"{word}\t{tag}" for word, tag in zip(found.words, found.tags, strict=True)), ""]
    return [
        "\t".join([str(number), one.label, one.text, str(one.start), str(one.end), f"{one.probability:.4f}"])
        for one in found.entities
    ]


def evaluate_tags(test: TestSet) -> None:
    """Tag a test set and give strict F1 of entities, by kind too."""
    from regard.data.conll import read_tagged
    from regard.pipeline.loaders import load_tagger

    rows = read_tagged(test.files, test.reading)
    model = load_tagger(test.folder, **test.computing)
    rows.tag_ids(model.tags)  # an unknown tag is refused before anything is computed
    said = model.tag_sentences(rows)
    if test.out:
        pairs = (zip(one.words, tags, strict=True) for one, tags in zip(rows.sentences, said, strict=True))
        write_lines(test.out, (line for pair in pairs for line in [*map("\t".join, pair), ""]))
    scores = model.scores(rows, said)
    lines = [
        f"{len(rows):,} sentences, F1 {scores['f1']:.2f} % (precision {scores['precision']:.2f} %, recall "
        f"{scores['recall']:.2f} %), {scores['accuracy']:.2f} % of the words have the right tag",
        *align_columns([[kind, f"{value:.2f}"] for kind, value in scores["f1_by_kind"].items()]),
        model.account.format(),
    ]
    print_result({**scores, "account": model.account.to_dict()}, lines, test.as_json)
