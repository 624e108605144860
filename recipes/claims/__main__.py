"""`python -m recipes.claims`: check a claim about attention by training the models that it compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from recipes.claims.claim import ClaimConfig
from regard.checkpoint.atomic import read_json
from regard.cli import main
from regard.cli.options import AutoNumber, Option, verb
from regard.cli.output import align_columns, note, print_result, progress_listener
from regard.errors import UsageError

PROGRAM = "python -m recipes.claims"
HELP = """Check a claim: train the models that FILE names, evaluate them alike, and say whether it holds here.

recipes/claims/ holds claims from the literature on attention. Some generate their data; others need yours.

\b
  python -m recipes.claims recipes/claims/attention-repairs-long-sequences.json --out long
  python -m recipes.claims recipes/claims/hops-answer-several-facts.json --train train.txt --test test.txt --out hops
"""


def _data_option(name: str, help: str) -> Option:
    return Option([f"--{name}"], multiple=True, metavar="FILE …", help=help)


@verb(
    HELP,
    [
        click.Argument(["file"], metavar="FILE"),
        Option(["--out"], metavar="FOLDER", required=True, help="where the runs and the result go"),
        _data_option("train", "training data, for claims that generate none"),
        _data_option("valid", "validation data; otherwise some is held out"),
        _data_option("test", "test data, for claims that generate none"),
        Option(["--minutes"], type=click.FloatRange(0, min_open=True), help="for each run, instead of the claim's own"),
        Option(["--seed"], multiple=True, type=click.IntRange(0), help="instead of the claim's own; may be repeated"),
        Option(
            ["--threads"],
            type=AutoNumber(click.IntRange(1)),
            default="auto",
            help="CPU threads; auto: all cores. [default: auto]",
        ),
    ],
    greedy=("--train", "--valid", "--test"),
)
def claim(
    context: click.Context,
    file: str,
    out: str,
    train: tuple[str, ...],
    valid: tuple[str, ...],
    test: tuple[str, ...],
    minutes: float | None,
    seed: tuple[int, ...],
    threads: int,
    as_json: bool,
) -> None:
    """Check the claim of a recipe file."""
    config = ClaimConfig.from_dict(read_json(Path(file)), where=file)
    if bool(train) != bool(test):
        raise UsageError("--train and --test go together: what is learned, and what is measured on")
    from recipes.claims.check import ClaimData, check_claim, write_result

    overrides: dict[str, Any] = {"training.threads": threads}
    if minutes:
        overrides |= {"training.minutes": minutes, "training.steps": 0, "training.epochs": 0}
    data = ClaimData(train, test, valid=valid) if train else None
    with progress_listener(as_json) as listener:
        result = check_claim(
            config, Path(out), data, overrides=overrides, seeds=seed, listeners=[listener], report=note
        )
    paths = write_result(result, Path(out))
    lines = [
        config.claim,
        "",
        *align_columns(result.table()),
        "",
        result.verdict(),
        *(f"written: {path}" for path in paths),
    ]
    print_result(result.to_dict(), lines, as_json)


if __name__ == "__main__":
    main(command=claim, program=PROGRAM)
