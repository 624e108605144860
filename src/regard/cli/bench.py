"""`regard bench`: our speed beside everybody's."""

from __future__ import annotations

from pathlib import Path

import click

from regard.bench.settings import BenchConfig
from regard.cli.options import changes, knob_options, verb
from regard.cli.output import give, note
from regard.errors import UsageError

HELP = """Measure speed and memory beside every installed peer, in one interleaved run, and how cost grows.

Everybody has the same model sizes, data and lengths, and a process of its own; a peer that is not installed is skipped
with a word. The table, bench.json and bench.svg hold ratios with their spread.

\b
  regard bench --quick
  regard bench --only training --size small --repeats 7
  regard bench --only translation,latency --peers transformers,ctranslate2 --json
"""


@verb(HELP, knob_options(BenchConfig, section="Main options"))
def bench(context: click.Context, as_json: bool) -> None:
    """Run the benches."""
    config = BenchConfig().override(changes(context))
    folder = Path(config.out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: choose a folder for --out")
    from regard.bench.run import run

    report = run(config, note)
    places = report.write(folder)
    give(report.to_list(), report.lines(), as_json)
    note(f"written: {' and '.join(map(str, places))}")
