"""`regard convert`: a model in another tool's layout."""

from __future__ import annotations

import click

from regard.cli.options import Option, verb
from regard.cli.output import print_result

HELP = """Write the model of FOLDER into the new folder OUT, in another layout.

FOLDER is a run, a model of ours, a folder from elsewhere (bert, distilbert, roberta, xlm-roberta, big_bird, electra,
albert, modernbert, gpt2, gpt_neox, marian, pegasus), or the name of a published one.

\b
  regard convert runs/en-de out/ --to huggingface
  regard convert runs/en-de fast/ --to ctranslate2
  regard convert runs/mood out/ --to onnx
  regard convert any/huggingface/folder out/
  regard convert runs/en-de small/ --precision int8
  regard convert runs/en-de quick/ --precision int8 --shortlist train.en train.de
"""
LAYOUTS = "huggingface: for transformers; ctranslate2: for CTranslate2; onnx: for ONNX run-times; regard: for ourselves"


@verb(
    HELP,
    [
        click.Argument(["folder"], metavar="FOLDER"),
        click.Argument(["out"], metavar="OUT"),
        Option(["--to"], default="huggingface", metavar="LAYOUT", help=f"{LAYOUTS} [default: huggingface]"),
        Option(
            ["--precision"],
            type=click.Choice(["float32", "bf16", "int8"]),
            help="for our engine, in this number format and ready to use; translators, encoders and causal models",
        ),
        Option(
            ["--shortlist"],
            multiple=True,
            metavar="FILES…",
            help="parallel text that tells which few words a translation is chosen from: faster, and what it costs "
            "is told",
        ),
    ],
    greedy=("--shortlist",),
)
def convert(
    context: click.Context,
    folder: str,
    out: str,
    to: str,
    precision: str | None,
    shortlist: tuple[str, ...],
    as_json: bool,
) -> None:
    """Convert a folder."""
    from regard.checkpoint.export.convert import convert as convert_folder

    made = convert_folder(folder, out, format=to, precision=precision, shortlist=shortlist)
    facts = {"folder": str(made.folder), "model_type": made.model_type, "weights": vars(made.report)}
    print_result(facts, [f"{made.folder}: written as {made.model_type}", *made.report.format_lines()], as_json)
