"""`regard convert`: a model in the format of another tool, or packed for the engine."""

from __future__ import annotations

import click

from regard.cli.model_options import MODEL_ARGUMENT
from regard.cli.options import ALLOW_UNUSED, Option, verb
from regard.cli.output import print_result

HELP = """Export MODEL to ONNX, CTranslate2 or Hugging Face, or pack it for the engine, in the new folder OUT.

MODEL is a run, a model folder of Regard or of Hugging Face (bert, distilbert, roberta, xlm-roberta, big_bird, electra,
albert, modernbert, gpt2, gpt_neox, marian, pegasus), or the name of a model on the hub. ONNX is for encoders, with any
head, and causal language models, CTranslate2 for translation models. The extra onnx or convert is needed for them:
pip install 'regard[onnx]' or 'regard[convert]'.

\b
  regard convert runs/en-de out/ --to huggingface
  regard convert runs/en-de fast/ --to ctranslate2
  regard convert runs/mood onnx-mood --to onnx
  regard convert bert-base-uncased out/
  regard convert runs/en-de small/ --precision int8
  regard convert runs/en-de quick/ --precision int8 --shortlist train.en train.de
"""
FORMATS = "Format: huggingface (transformers), ctranslate2, onnx, or regard (our own)."


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        click.Argument(["out"], metavar="OUT"),
        Option(["--to", "format"], default="huggingface", metavar="FORMAT", help=f"{FORMATS} [default: huggingface]"),
        Option(
            ["--precision"],
            type=click.Choice(["float32", "bf16", "int8"]),
            help="Pack weights for the engine in this precision; translation models, encoders and causal models.",
        ),
        Option(
            ["--shortlist"],
            multiple=True,
            metavar="FILES…",
            help="Parallel text for a lexicon that limits the output vocabulary of each sentence: faster; the loss in "
            "quality is reported.",
        ),
        ALLOW_UNUSED,
    ],
    greedy=("--shortlist",),
    output=["regard.checkpoint.export.convert:ConversionResult"],
)
def convert(
    context: click.Context,
    folder: str,
    out: str,
    format: str,
    precision: str | None,
    shortlist: tuple[str, ...],
    as_json: bool,
) -> None:
    """Convert a model folder."""
    from regard.checkpoint.export.convert import convert as convert_folder

    converted = convert_folder(folder, out, format=format, precision=precision, shortlist=shortlist)
    lines = [f"{converted.folder}: written as {converted.model_type}", *converted.report.format_lines()]
    print_result(converted.to_dict(), lines, as_json)
