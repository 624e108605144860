"""`regard reach`: how much a token read some steps ago still influences predictions, by its distance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.cli.model_options import PAIR_READ_OPTIONS, TORCH_OPTIONS
from regard.cli.options import FiniteRange, Option, changed_settings, verb
from regard.cli.output import align_columns, json_line, note, print_result, write_lines
from regard.config.data import ReadConfig
from regard.errors import UsageError

HELP = """Measure how far each MODEL looks back on FILES: influence and exact match by distance.

The distance of a token is the number of tokens read between it and the prediction. Its influence is the gradient norm
of the reference token's log-probability by its embedding, as a share of its row; occlusion, the loss of log-probability
where another token replaces it, is the check. Where the reference token occurs exactly once in the text before the
prediction, this token is to be recalled: exact match by distance is compared with its influence by Spearman's rank
correlation.

Models are translation models, with or without attention, or causal language models; FILES are sentence pairs, or
running text. Of each sentence pair, one target token is predicted. `regard data make recall` generates pairs with a
known distance.

\b
  regard reach runs/en-de runs/mine test.en test.de --out reach.html
  regard reach runs/gpt books/one.txt --sample 500 --json
"""
EXTENSIONS = (".html", ".json", ".tsv")


@verb(
    HELP,
    [
        click.Argument(["inputs"], nargs=-1, required=True, metavar="MODEL… FILES…"),
        Option(["--out"], metavar="FILE", help="Write the report here: .html (a page with charts), .tsv or .json."),
        Option(
            ["--sample"],
            type=click.IntRange(1),
            default=1000,
            metavar="N",
            help="Predictions to measure, at most. [default: 1000]",
        ),
        Option(
            ["--minutes"],
            type=FiniteRange(0, min_open=True),
            default=2.0,
            help="Time limit for each model; one batch is measured in any case. [default: 2]",
        ),
        Option(["--bins"], type=click.IntRange(3), default=12, help="Ranges of distances, at most. [default: 12]"),
        Option(["--seed"], type=click.IntRange(0), default=0, help="Random seed of the sample. [default: 0]"),
        *PAIR_READ_OPTIONS,
        *TORCH_OPTIONS,
    ],
    output=["regard.report.reach:ReachReportDict"],
)
def reach(
    context: click.Context,
    inputs: tuple[str, ...],
    out: str | None,
    sample: int,
    minutes: float,
    bins: int,
    seed: int,
    as_json: bool,
    **load_options: Any,
) -> None:
    """Measure the reach of models and report it."""
    if out and not out.endswith(EXTENSIONS):
        raise UsageError(f"{out}: the report is written as {', '.join(EXTENSIONS)}: name such a file")
    files = [name for name in inputs if Path(name).is_file()]
    models = [name for name in inputs if name not in files]
    if not files or not models:
        missing = "a folder of a model" if files else "a file with texts"
        raise UsageError(f"{' '.join(inputs)}: {missing} is missing: regard reach MODEL… FILES…")
    from regard.report.reach import measure_reach

    report = measure_reach(
        models,
        files,
        ReadConfig().override(changed_settings(context, ReadConfig)),
        sample=sample,
        minutes=minutes,
        bins=bins,
        seed=seed,
        notify=note,
        **load_options,
    )
    if out:
        if out.endswith(".html"):
            write_lines(out, [report.page()])
        elif out.endswith(".json"):
            write_lines(out, [json_line(report.to_dict())])
        else:
            write_lines(out, report.tsv())
        note(f"report: {out}")
    print_result(report.to_dict(), [*align_columns(report.table()), "", *report.summary()], as_json)
