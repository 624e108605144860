"""`python -m benchmarks.peers`: speed and memory beside every installed peer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.peers.config import BenchmarkConfig
from regard import cli
from regard.cli.options import changed_settings, knob_options, verb
from regard.cli.output import note, print_result
from regard.errors import UsageError

PROGRAM = "python -m benchmarks.peers"
HELP = """Measure speed and memory beside every installed peer, in interleaved rounds, and how cost grows.

All libraries get the same model sizes, data and lengths, and each runs in a process of its own. A library that is not
installed is skipped with a message. The table, bench.json and bench.svg hold ratios with their spread.

\b
  python -m benchmarks.peers --quick
  python -m benchmarks.peers --only training --size small --repeats 7
  python -m benchmarks.peers --only translation,latency --peers transformers,ctranslate2 --json
"""


@verb(HELP, knob_options(BenchmarkConfig, section="Main options"))
def peers(context: click.Context, as_json: bool) -> None:
    """Run the benchmarks."""
    config = BenchmarkConfig().override(changed_settings(context))
    folder = Path(config.out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: choose a folder for --out")
    from benchmarks.peers.run import run as run_benchmarks

    report = run_benchmarks(config, note)
    paths = report.write(folder)
    print_result(report.to_list(), report.lines(), as_json)
    note(f"written: {' and '.join(map(str, paths))}")


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; errors are one message on standard error."""
    return cli.run(arguments, peers, PROGRAM)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
