"""`regard bench`: throughput and latency of a model on this machine."""

from __future__ import annotations

import click

from regard.cli.lists import parse_numbers, split_list
from regard.cli.options import Option, verb
from regard.cli.output import align_columns, note, print_result
from regard.errors import UsageError
from regard.formatting import format_count

HELP = """Measure throughput and latency of MODEL on this machine, by backend, precision and number of threads.

Translation models and causal language models are measured in generated tokens per second, other models in texts per
second; latencies are those of single texts. Without --texts, the texts are random English words: pass your own texts
for representative figures.

\b
  regard bench runs/en-de --quick
  regard bench runs/en-de --texts test.en --backend engine --precision int8,float32
  regard bench sentence-transformers/all-MiniLM-L6-v2 --threads 1,2 --json
"""


@verb(
    HELP,
    [
        click.Argument(["model"], metavar="MODEL"),
        Option(["--texts"], metavar="FILE", help="Measure on the lines of this file. [default: synthetic texts]"),
        Option(
            ["--backend", "backends"],
            metavar="LIST",
            default="",
            help="Inference backends: engine, torch or both. [default: both]",
        ),
        Option(
            ["--precision", "precisions"],
            metavar="LIST",
            default="",
            help="Precisions, separated by commas: float32, bf16, int8. [default: all that the model supports]",
        ),
        Option(
            ["--threads"],
            metavar="LIST",
            default="auto",
            help="Thread counts, as in 1,2,4; auto: all cores. [default: auto]",
        ),
        Option(["--rounds"], type=click.IntRange(1), help="Timed rounds. [default: 5; with --quick 3]"),
        Option(["--count"], type=click.IntRange(1), help="Texts per batch. [default: 200; with --quick 32]"),
        Option(["--quick"], is_flag=True, help="Fewer texts and rounds."),
    ],
    output=["regard.report.json_output:ModelBenchmarkDict"],
)
def bench(
    context: click.Context,
    model: str,
    texts: str | None,
    backends: str,
    precisions: str,
    threads: str,
    rounds: int | None,
    count: int | None,
    quick: bool,
    as_json: bool,
) -> None:
    """Benchmark the model and print one row per setup."""
    from dataclasses import replace

    from regard.data.ledger import read_texts
    from regard.report.bench import FULL, QUICK, benchmark_model

    preset = QUICK if quick else FULL
    effort = replace(preset, rounds=rounds or preset.rounds, texts=count or preset.texts)
    lines = read_texts(texts) if texts else []
    if texts and not any(line.strip() for line in lines):
        raise UsageError(f"{texts} has no texts: name a file with one text per line")
    report = benchmark_model(
        model,
        lines,
        backends=split_list(backends),
        precisions=split_list(precisions),
        threads=parse_numbers("--threads", threads),
        effort=effort,
        log=note,
    )
    skipped = [f"skipped: {reason}" for reason in report.skipped]
    counts = f"{format_count(report.texts, 'text')}, median and range of {format_count(report.rounds, 'round')}"
    summary = f"{counts}; milliseconds of single texts"
    print_result(report.to_dict(), [*align_columns(report.table()), "", summary, *skipped], as_json)
