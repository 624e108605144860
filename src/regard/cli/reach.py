"""`regard reach`: how much a token read some steps ago still influences predictions, by its distance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.cli.model_options import PAIR_READ_OPTIONS, TORCH_OPTIONS
from regard.cli.options import FiniteRange, Option, changed_settings, reject_other_options, verb
from regard.cli.output import check_report_name, note, print_report
from regard.config.data import ReadConfig
from regard.errors import UsageError

HELP = """Measure how far each MODEL looks back on FILES: influence and exact match by distance.

The distance of a token is the number of tokens read between it and the prediction. Its influence is the gradient norm
of the reference token's log-probability by its embedding, as a fraction of its row; occlusion, the loss of
log-probability where another token replaces it, is the check. Where the reference token occurs exactly once in the text
before the prediction, this token is to be recalled: exact match by distance is compared with its influence by
Spearman's rank correlation.

Models are translation models, with or without attention, or causal language models; FILES are sentence pairs, or
running text. Of each sentence pair, one target token is predicted. `regard data make recall` generates pairs with a
known distance.

--history shows the gradient norms by layer and distance that a run with --log-gradients has logged; it needs no FILES.

\b
  regard reach runs/en-de runs/mine test.en test.de --out reach.html
  regard reach runs/gpt books/one.txt --sample 500 --json
"""


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
        Option(["--history"], is_flag=True, help="Show the gradient norms that a run has logged during training."),
        *PAIR_READ_OPTIONS,
        *TORCH_OPTIONS,
    ],
    output=["regard.report.reach:ReachReportDict", "regard.report.gradient_history:GradientHistoryDict"],
)
def reach(
    context: click.Context,
    inputs: tuple[str, ...],
    out: str | None,
    sample: int,
    minutes: float,
    bins: int,
    seed: int,
    history: bool,
    as_json: bool,
    **load_options: Any,
) -> None:
    """Measure the reach of models and report it."""
    check_report_name(out)
    if history:
        _show_history(context, inputs, out, as_json)
        return
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
    print_report(report, out, as_json)


def _show_history(context: click.Context, inputs: tuple[str, ...], out: str | None, as_json: bool) -> None:
    """Show the gradients that a run has logged."""
    from regard.report.gradient_history import read_gradient_history

    reject_other_options(context, ("--history", "--out", "--json"), "--history")
    if len(inputs) != 1:
        raise UsageError(f"--history shows one run, not {len(inputs)} inputs: regard reach RUN --history")
    print_report(read_gradient_history(inputs[0]), out, as_json)
