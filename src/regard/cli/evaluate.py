"""`regard evaluate`: a test set translated and scored."""

from __future__ import annotations

from typing import Any

import click

from regard.cli.models import COMPUTING, ENSEMBLE, FILES, FOLDER, READING, SEARCHING, SPLIT, opened, windows
from regard.cli.options import Option, changes, verb
from regard.cli.output import give, progress, table, write_lines
from regard.config.data import ReadConfig
from regard.config.decoding import DecodingConfig

HELP = """Translate the source side of FILES and compare with the target side: BLEU, chrF and TER with signatures.

\b
  regard evaluate runs/en-de test.en test.de
  regard evaluate runs/en-de test.tsv --beam 8 --out said.de --json
"""
NAMES = {"bleu": "BLEU", "bleu_lowercase": "BLEU, lower-cased", "chrf": "chrF", "ter": "TER"}


@verb(
    HELP,
    [
        FOLDER,
        FILES,
        Option(["--out"], metavar="FILE", help="write the translations here"),
        SPLIT,
        ENSEMBLE,
        *READING,
        *SEARCHING,
        *COMPUTING,
    ],
)
def evaluate(
    context: click.Context,
    folder: str,
    files: tuple[str, ...],
    out: str | None,
    split: bool,
    ensemble: tuple[str, ...],
    as_json: bool,
    **computing: Any,
) -> None:
    """Score a test set."""
    from regard.data.sources import read_pairs
    from regard.tasks.metrics import scores_by_length, translation_scores

    pairs = read_pairs(files, ReadConfig().override(changes(context, ReadConfig)))
    model = opened(folder, computing, ensemble)
    settings = changes(context, DecodingConfig)
    found = (model.translate(window, split=split, **settings) for window in windows(pairs.source))
    said = [str(one) for one in progress(found, len(pairs), "sentences")]
    if out:
        write_lines(out, said)
    scores = translation_scores(said, pairs.target)
    lengths = scores_by_length(pairs.source, said, pairs.target)
    rows = [[name, f"{scores[key]:.2f}", scores[f"{key}_signature"]] for key, name in NAMES.items()]
    lines = [f"{len(pairs):,} sentences, exact match {scores['exact_match']:.1f} %", *table(rows)]
    lines += ["by words of the source:"]
    lines += [
        f"  {line}"
        for line in table([[one["words"], f"{one['sentences']:,}", f"BLEU {one['bleu']:.2f}"] for one in lengths])
    ]
    give({**scores, "by_length": lengths}, lines, as_json)
