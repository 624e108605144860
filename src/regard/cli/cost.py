"""`regard cost`: seconds and operations of an update by sequence length, and state size, of several architectures."""

from __future__ import annotations

import click

from regard.cli.lists import parse_numbers, split_list
from regard.cli.options import Option, verb
from regard.cli.output import check_report_name, note, print_report

HELP = """Measure what architectures cost by sequence length: seconds and operations of an update, and state size.

Translation models of one size with random weights are trained on random tokens, with equally many tokens in an update
at every length; rounds are interleaved. Operations are those of matrix products, forward and backward. The state is
what is kept while a sentence is generated: an RNN's has a fixed size, a Transformer's key-value cache grows with each
token.

\b
  regard cost --out cost.html
  regard cost --arch rnn,gru:none,transformer --lengths 16,64,256 --threads 1,2 --rounds 3
"""


@verb(
    HELP,
    [
        Option(
            ["--arch", "architectures"],
            metavar="LIST",
            default="rnn,transformer",
            help="Architectures: transformer, rnn (lstm:none), or CELL:ATTENTION, as in lstm:additive or gru:dot. "
            "[default: rnn,transformer]",
        ),
        Option(
            ["--lengths"],
            metavar="LIST",
            default="16,32,64,128,256,512,1024",
            help="Tokens of a source and of a target. [default: 16,32,64,128,256,512,1024]",
        ),
        Option(
            ["--threads"],
            metavar="LIST",
            default="auto",
            help="Thread counts, as in 1,2,4; auto: one, and all cores. [default: auto]",
        ),
        Option(["--hidden-size"], type=click.IntRange(2), default=128, help="Hidden size. [default: 128]"),
        Option(["--num-layers"], type=click.IntRange(1), default=2, help="Layers of encoder and decoder. [default: 2]"),
        Option(["--vocab-size"], type=click.IntRange(8), default=1000, help="Vocabulary size. [default: 1000]"),
        Option(
            ["--batch-tokens"],
            type=click.IntRange(1),
            default=2048,
            help="Target tokens of an update; at least one sentence. [default: 2048]",
        ),
        Option(["--rounds"], type=click.IntRange(1), default=5, help="Timed rounds. [default: 5]"),
        Option(["--out"], metavar="FILE", help="Write the report here: .html (a page with charts), .tsv or .json."),
    ],
    output=["regard.report.cost:CostReportDict"],
)
def cost(
    context: click.Context,
    architectures: str,
    lengths: str,
    threads: str,
    hidden_size: int,
    num_layers: int,
    vocab_size: int,
    batch_tokens: int,
    rounds: int,
    out: str | None,
    as_json: bool,
) -> None:
    """Measure the cost of architectures and report it."""
    check_report_name(out)
    from regard.report.cost import CostSettings, measure_cost

    settings = CostSettings(
        architectures=tuple(split_list(architectures)),
        lengths=tuple(parse_numbers("--lengths", lengths)),
        threads=tuple(parse_numbers("--threads", threads)),
        hidden_size=hidden_size,
        num_layers=num_layers,
        vocab_size=vocab_size,
        tokens=batch_tokens,
        rounds=rounds,
    )
    report = measure_cost(settings, log=note)
    print_report(report, out, as_json)
