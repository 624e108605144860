"""`python -m recipes.claims`: check claims about attention by training the models that they compare."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipes.claims.claim import ClaimConfig, claim_files, find_claim, read_claim
from recipes.claims.result import ClaimResult, is_current, read_result
from recipes.datasets import MissingDataError
from regard.cli import main
from regard.cli.options import Option, verb
from regard.cli.output import align_columns, note, print_result, progress_listener
from regard.errors import InterruptedTrainingError, RegardError, TrainingError
from regard.formatting import format_count, format_duration
from regard.hardware import available_cores

if TYPE_CHECKING:
    from recipes.claims.check import ClaimCheck

PROGRAM = "python -m recipes.claims"
RESULTS = Path("benchmarks/results/claims")
RUNS = Path("runs/claims")
MAX_THREADS = 2  # the claims' minutes are for two cores
HELP = """Check claims about attention from the literature: train the models that each compares, measure them alike, and
decide by the rule that its recipe fixed beforehand.

NAMES are claims of recipes/claims/, or recipe files; without any, all are checked. What is finished is not repeated: a
claim whose result belongs to its recipe is skipped, an interrupted one resumes where it was, and one of which only the
rule has changed is decided again without training.

\b
  python -m recipes.claims --list
  python -m recipes.claims positions-are-needed
  python -m recipes.claims --data ../shared/data
  python -m recipes.claims several-facts-need-hops --data ../shared/data --quick
"""


@verb(
    HELP,
    [
        click.Argument(["names"], nargs=-1, metavar="[NAMES]…"),
        Option(
            ["--data"],
            metavar="FOLDER",
            help="Folder of public data sets (trec/, sst2/, babi/, …); claims that need a missing one are skipped. "
            "[default: the environment variable DATA]",
        ),
        Option(["--out"], metavar="FOLDER", default=str(RUNS), help=f"Where the runs go. [default: {RUNS}]"),
        Option(
            ["--results"],
            metavar="FOLDER",
            help=f"Where results and figures go. [default: {RESULTS}; with --quick, the folder of the runs]",
        ),
        Option(
            ["--threads"],
            type=click.IntRange(1),
            help="CPU threads; an interrupted claim resumes with the same number only. [default: 2, or as many as "
            "there are cores]",
        ),
        Option(
            ["--quick"], is_flag=True, help="A trial of seconds: tiny data, two updates; the verdict means nothing."
        ),
        Option(["--list", "is_list"], is_flag=True, help="List the claims with their verdicts, and check none."),
    ],
)
def claims(
    context: click.Context,
    names: tuple[str, ...],
    data: str | None,
    out: str,
    results: str | None,
    threads: int | None,
    quick: bool,
    is_list: bool,
    as_json: bool,
) -> None:
    """Check, or list, the claims."""
    recipes = _read_recipes(names)
    data = data or os.environ.get("DATA")
    results_folder = Path(results or (Path(out) / "quick" if quick else RESULTS))
    if is_list:
        _print_list(recipes, results_folder, as_json)
        return
    waiting = {
        name: config
        for name, config in recipes.items()
        if quick or not is_current(read_result(results_folder, name), config)
    }
    if len(waiting) < len(recipes):
        note(f"{len(recipes) - len(waiting)} of {len(recipes)} claims have a result that is up to date: skipped")
    if not quick:
        note(_describe_budget(waiting))
    from recipes.claims.check import CheckContext, ClaimCheck

    start = time.monotonic()
    with progress_listener(as_json) as listener:
        check_context = CheckContext(
            Path(out),
            Path(data) if data else None,
            threads=threads or min(MAX_THREADS, available_cores()),
            is_quick=quick,
            listeners=[] if quick else [listener],
            report=note,
        )
        checks = {name: ClaimCheck(name, config, check_context) for name, config in waiting.items()}
        for check in checks.values():  # all of them before the first training, so that a mistake costs no time
            check.check()
        missing, failed = _run_checks(checks, results_folder, as_json)
    seconds = time.monotonic() - start
    note(f"{format_count(len(waiting) - len(missing) - len(failed), 'claim')} checked in {format_duration(seconds)}")
    if missing:
        note(f"{len(missing)} skipped for lack of data: {', '.join(missing)}")
    if failed:
        raise TrainingError(f"{len(failed)} failed (see above): {', '.join(failed)}")


def _run_checks(checks: Mapping[str, ClaimCheck], results_folder: Path, as_json: bool) -> tuple[list[str], list[str]]:
    """Check each claim and write its result; return the names of those that lack data, and of those that failed."""
    missing = []
    failed = []
    for index, (name, check) in enumerate(checks.items(), 1):
        note(f"claim {index} of {len(checks)}: {name}")
        try:
            result = check.run()
        except MissingDataError as error:
            note(f"skipped: {name}: {error}")
            missing.append(name)
            continue
        except InterruptedTrainingError:
            raise
        except RegardError as error:  # the other claims are checked all the same
            note(f"failed: {name}: {error}")
            failed.append(name)
            continue
        paths = result.write(results_folder)
        print_result(result.to_dict(), _describe_result(result, paths), as_json)
    return missing, failed


def _read_recipes(names: Sequence[str]) -> dict[str, ClaimConfig]:
    """Recipes by the name of their claim; all of them where none is named."""
    files = {path.stem: path for path in map(find_claim, names)} if names else claim_files()
    return {name: read_claim(path) for name, path in files.items()}


def _describe_budget(recipes: Mapping[str, ClaimConfig]) -> str:
    minutes = sum(config.minutes for config in recipes.values())
    return f"{format_count(len(recipes), 'claim')} to check: at most {format_duration(60 * minutes)} on two cores"


def _print_list(recipes: Mapping[str, ClaimConfig], results: Path, as_json: bool) -> None:
    rows = []
    for name, config in recipes.items():
        result = read_result(results, name)
        verdict = str(result["verdict"]) if result and is_current(result, config) else "not checked"
        rows.append({"name": name, "claim": config.claim, "minutes": config.minutes, "verdict": verdict})
    table = [["name", "minutes", "verdict"]]
    table += [[str(row["name"]), f"{row['minutes']:g}", str(row["verdict"])] for row in rows]
    print_result(rows, [*align_columns(table), _describe_budget(recipes)], as_json)


def _describe_result(result: ClaimResult, paths: Sequence[Path]) -> list[str]:
    return [
        result.config.claim,
        f"({result.config.source})",
        "",
        *align_columns(result.table()),
        "",
        f"{result.verdict}: {'; '.join(rule.describe() for rule in result.rules)}",
        *(f"written: {path}" for path in paths),
    ]


if __name__ == "__main__":
    main(command=claims, program=PROGRAM)
