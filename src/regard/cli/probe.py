"""`regard probe`: linear probes of every layer of a model."""

from __future__ import annotations

from typing import Any

import click

from regard.cli.model_options import FILES, MODEL_ARGUMENT, TORCH_OPTIONS
from regard.cli.options import FiniteRange, Option, changed_settings, knob_options, verb
from regard.cli.output import check_report_name, note, print_report
from regard.config.data import ReadConfig

HELP = """Train linear probes on the hidden states of every layer: what does it encode about the words of FILES?

FILES hold tagged words in CoNLL columns. Of each layer of the frozen model, and of its embeddings, a linear map
predicts a target for every word: its tag (accuracy, or macro-F1), its position in the sentence or its depth (R²). A
word's state is the mean over its subwords. The depth is a column of whole numbers, such as the brackets that are open
(`regard data make brackets`) or the depth in a syntax tree; --label N selects a column, for tags, too.

Scores are compared with the most frequent tag of all words and of each word (or their means), and with a control task:
random values by word (Hewitt & Liang 2019). Selectivity is the score minus that of the control. Intervals are 95 %, by
bootstrap over the test sentences; p is that of no gain over the word's own tag, adjusted for the number of layers.

Models are encoders, causal language models, ELMo, recurrent classifiers and taggers, and translation models, whose
decoder (--side decoder) reads the words as its target.

\b
  regard probe bert-base-uncased names.conll
  regard probe runs/names names.conll --test test.conll --metric macro_f1
  regard probe runs/en-de names.conll --target position --out positions.html
  regard probe runs/gpt brackets.conll --target depth --json
"""
READ_OPTIONS = knob_options(
    ReadConfig,
    section="Reading files",
    skip=("format", "source", "target", "pair", "label_separator", "header", "delimiter"),
    descriptions={"text": "Column of the words, by number.", "label": "Column of the tags or depths, by number."},
)


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        FILES,
        Option(
            ["--target"],
            type=click.Choice(["tags", "position", "depth"]),
            default="tags",
            help="What to predict of each word. [default: tags]",
        ),
        Option(
            ["--test"],
            multiple=True,
            metavar="FILE …",
            help="Test files. [default: a fifth of the sentences is held out]",
        ),
        Option(
            ["--metric"],
            default="",
            metavar="NAME",
            help="Score of tags: accuracy or macro_f1. [default: accuracy]",
        ),
        Option(
            ["--sample"],
            type=click.IntRange(10),
            default=1000,
            metavar="N",
            help="Sentences to use, at most; of training and of test files each, if both are named. [default: 1000]",
        ),
        Option(
            ["--side"],
            type=click.Choice(["encoder", "decoder"]),
            default="encoder",
            help="Part of a translation model to probe. [default: encoder]",
        ),
        Option(
            ["--source"],
            default="",
            metavar="FILE",
            help="Sources that the decoder reads, one line per sentence of FILES. [default: empty sources]",
        ),
        Option(
            ["--penalty"],
            type=FiniteRange(0, min_open=True),
            default=1.0,
            help="L2 penalty of the probes, on standardised states. [default: 1]",
        ),
        Option(
            ["--seed"],
            type=click.IntRange(0),
            default=0,
            help="Random seed of the sample and of the control task. [default: 0]",
        ),
        Option(["--out"], metavar="FILE", help="Write the report here: .html (a page with a chart), .tsv or .json."),
        *READ_OPTIONS,
        *TORCH_OPTIONS,
    ],
    greedy=("--test",),
    output=["regard.report.probes:ProbeReportDict"],
)
def probe(
    context: click.Context,
    folder: str,
    files: tuple[str, ...],
    target: str,
    out: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Probe the layers of a model and report it."""
    check_report_name(out)
    from regard.report.probes import run_probes

    read_config = ReadConfig().override(changed_settings(context, ReadConfig))
    report = run_probes(folder, files, target, read_config, notify=note, **options)
    print_report(report, out, as_json)
