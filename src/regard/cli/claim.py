"""`regard claim`: a claim about attention, checked by training the models it speaks of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.checkpoint.files import read_json
from regard.cli.options import Option, verb
from regard.cli.output import give, note, table, watching
from regard.config.claim import ClaimConfig
from regard.errors import UsageError

HELP = """Check a claim: train the models that FILE names, measure them alike, say whether it holds here, and how well.

recipes/claims/ holds claims that texts on attention make. Some make their data; others need yours.

\b
  regard claim recipes/claims/attention-repairs-long-sequences.json --out claims/long
  regard claim recipes/claims/hops-answer-several-facts.json --train qa2_train.txt --test qa2_test.txt --out claims/hops
"""


def _set(name: str, what: str) -> Option:
    return Option([f"--{name}"], multiple=True, metavar="FILE …", help=what)


@verb(
    HELP,
    [
        click.Argument(["file"], metavar="FILE"),
        Option(["--out"], metavar="FOLDER", required=True, help="where the runs and the verdict go"),
        _set("train", "training data, for claims that make none"),
        _set("valid", "validation data; otherwise some is held out"),
        _set("test", "test data, for claims that make none"),
        Option(["--minutes"], type=click.FloatRange(0, min_open=True), help="for each run, instead of the claim's own"),
        Option(["--seed"], multiple=True, type=click.IntRange(0), help="instead of the claim's own; may be repeated"),
        Option(["--threads"], type=click.IntRange(0), default=0, help="processor threads; 0: all cores [default: 0]"),
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
    """Check a claim."""
    config = ClaimConfig.from_dict(read_json(Path(file)), where=file)
    if bool(train) != bool(test):
        raise UsageError("--train and --test go together: what is learned, and what is measured on")
    from regard.claims import Files, check_claim, write

    changes: dict[str, Any] = {"training.threads": threads}
    if minutes:
        changes |= {"training.minutes": minutes, "training.steps": 0, "training.epochs": 0}
    files = Files(train, test, valid) if train else None
    with watching(as_json) as watcher:
        found = check_claim(config, Path(out), files, changes=changes, seeds=seed, watchers=[watcher], tell=note)
    written = write(found, Path(out))
    lines = [config.claim, "", *table(found.table()), "", found.sentence(), *(f"written: {one}" for one in written)]
    give(found.to_dict(), lines, as_json)
