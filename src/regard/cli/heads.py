"""`regard heads`: what each head does on a corpus, and what is lost without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.cli.model_options import COMPUTING, FILES, FOLDER, READING
from regard.cli.options import Option, changed_settings, verb
from regard.cli.output import align_columns, json_line, note, print_result, show_progress, write_lines
from regard.config.data import ReadConfig
from regard.errors import DataError, UsageError

HELP = """Say what each head of a model does on FILES, and what is lost without it.

While the model reads, the heads' entropy, distance and shares (on special tokens, on the previous, own and next token,
on the same word elsewhere, near the diagonal) are added up. Then each head is switched off once, and the model is
measured on a sample: translators by the loss of the given translations or BLEU, classifiers, taggers and answerers by
loss, accuracy or F1, language models by loss, encoders without a head by how far their vectors turn. The sample is as
large as --minutes allow, and said. Of translators, the head that aligns words best is named.

\b
  regard heads runs/en-de dev.tsv
  regard heads runs/en-de dev.en dev.de --metric bleu --minutes 10
  regard heads runs/mood dev.csv --metric f1 --out heads.html
  regard heads runs/en-de dev.tsv --sort entropy --all
  regard heads sentence-transformers/all-MiniLM-L6-v2 texts.txt --out heads.tsv
"""
ENDINGS = (".html", ".json", ".tsv")


@verb(
    HELP,
    [
        FOLDER,
        FILES,
        Option(["--metric"], default="", metavar="NAME", help="what is measured [default: loss, or the task's own]"),
        Option(
            ["--sample"],
            type=click.IntRange(1),
            metavar="N",
            help="examples that are measured [default: what time allows, 1,000 at most]",
        ),
        Option(
            ["--minutes"],
            type=click.FloatRange(0.05),
            default=4.0,
            help="time for all of it, where no --sample is given [default: 4]",
        ),
        Option(
            ["--alignment"],
            metavar="FILE",
            help="right word links of every pair (0-0 1-2 …), a line each: the errors of heads are counted",
        ),
        Option(["--sort"], default="importance", metavar="COLUMN", help="order of the table [default: importance]"),
        Option(["--all", "every"], is_flag=True, help="show every head, not only the first 20"),
        Option(["--out"], metavar="FILE", help="write the table here: .html (a page), .tsv or .json"),
        *READING,
        *COMPUTING,
    ],
)
def heads(
    context: click.Context,
    folder: str,
    files: tuple[str, ...],
    metric: str,
    sample: int | None,
    minutes: float,
    alignment: str | None,
    sort: str,
    every: bool,
    out: str | None,
    as_json: bool,
    **computing: Any,
) -> None:
    """Study the heads of a model."""
    if out and not out.endswith(ENDINGS):
        raise UsageError(f"{out}: the table of heads is written as {', '.join(ENDINGS)}: name such a file")
    from regard.interpret.head_study import build_probe, study_heads
    from regard.pipeline.load import load
    from regard.view.head_report import SHOWN, find_column

    find_column(sort)  # an unknown one is refused before anything is computed
    reading = ReadConfig().override(changed_settings(context, ReadConfig))
    pipeline = load(folder, backend="torch", **computing)
    report = study_heads(
        build_probe(pipeline, files, reading),
        metric=metric,
        sample=sample or 0,
        minutes=minutes,
        gold=_links(alignment, reading) if alignment else None,
        model=folder,
        data=" ".join(Path(name).name for name in files),
        progress=show_progress,
    ).sorted_by(sort)
    if out:
        kinds = {".html": report.page, ".json": lambda: json_line(report.to_dict()), ".tsv": report.tsv}
        made = kinds[Path(out).suffix]()
        write_lines(out, [made] if isinstance(made, str) else made)
        note(f"table: {out}")
    print_result(report.to_dict(), report.lines(align_columns, 0 if every else SHOWN), as_json)


def _links(path: str, reading: ReadConfig) -> list[list[tuple[int, int]]]:
    from regard.data.ledger import read_lines
    from regard.tasks.alignment import parse_pharaoh

    made = []
    for number, line in enumerate(read_lines(path, reading), 1):
        try:
            made.append(parse_pharaoh(line))
        except UsageError as error:
            raise DataError(str(error), location=f"{path}:{number}") from None
    return made
