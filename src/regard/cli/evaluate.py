"""`regard evaluate`: a test set translated, labelled or answered, and scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.cli.answer import evaluate_answers, evaluate_stories
from regard.cli.classify import evaluate_labels
from regard.cli.fill import evaluate_gaps
from regard.cli.models import COMPUTING, ENSEMBLE, FILES, FOLDER, READING, SEARCHING, SPLIT, opened, windows
from regard.cli.options import Option, changes, refuse_others, verb
from regard.cli.output import give, progress, table, write_lines
from regard.cli.tag import evaluate_tags
from regard.config.data import ReadConfig
from regard.config.decoding import DecodingConfig
from regard.config.model import UNSEEN
from regard.errors import UsageError

HELP = """Score a model on FILES.

A translator translates their source side; BLEU, chrF and TER compare it with the target side. A classifier labels their
texts: accuracy with its 95 % interval, macro-F1 and which labels it confuses; --errors makes a page of its mistakes. A
tagger tags their sentences (CoNLL columns): strict F1 of entities. Answers to questions in the form of SQuAD: exact
match and F1. A memory network answers the questions of
stories, each file a task: the share of wrong answers, and how often the sentences that support a right answer are those
that were looked at most. A masked-word model tells hidden tokens of plain text: their perplexity.

\b
  regard evaluate runs/en-de test.en test.de
  regard evaluate runs/en-de test.tsv --beam 8 --out said.de --json
  regard evaluate runs/mood test.csv --errors mistakes.html
  regard evaluate runs/names test.conll
  regard evaluate runs/babi qa1_test.txt qa2_test.txt --json
"""
WORDS = {"tag": evaluate_tags, "answer": evaluate_answers}  # task → what scores it
FILES_READ = ("--out", "--encoding", "--lenient", "--max-reject", "--text", "--label")
TUNED = (*FILES_READ, "--device", "--precision", "--threads", "--json")
STORIES = ("--out", "--unseen", "--encoding", "--lenient", "--max-reject", "--device", "--threads", "--json")
GAPS = ("--encoding", "--lenient", "--max-reject", "--device", "--precision", "--threads", "--json")
NAMES = {"bleu": "BLEU", "bleu_lowercase": "BLEU, lower-cased", "chrf": "chrF", "ter": "TER"}


@verb(
    HELP,
    [
        FOLDER,
        FILES,
        Option(["--out"], metavar="FILE", help="write the translations, labels or answers here"),
        SPLIT,
        ENSEMBLE,
        Option(["--errors"], metavar="FILE", help="write a page about a classifier's mistakes here"),
        Option(
            ["--unseen"],
            type=click.Choice(UNSEEN),
            default="refuse",
            help="answers unseen in training: refuse them, or count them as wrong [default: refuse]",
        ),
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
    unseen: str,
    errors: str | None,
    as_json: bool,
    **computing: Any,
) -> None:
    """Score a test set."""
    from regard.checkpoint.folder import task_of

    reading = ReadConfig().override(changes(context, ReadConfig))
    task = task_of(folder) if Path(folder).is_dir() else "translate"
    if task != "stories" and unseen != "refuse":
        raise UsageError(f"--unseen is for stories: {folder} is a model for the task {task!r}")
    if task == "classify":
        if split or ensemble or changes(context, DecodingConfig):
            raise UsageError(f"{folder} is a classifier: --split, --ensemble and settings of the search are not for it")
        evaluate_labels(folder, files, reading, out, as_json, computing, errors)
        return
    if errors:
        raise UsageError(f"an error book (--errors) is for classifiers: {folder} is a model for the task {task!r}")
    if task in WORDS:
        refuse_others(context, TUNED, f"{folder}, a model for the task {task!r}")
        WORDS[task](folder, files, reading, out, as_json, computing)
        return
    if task == "fill":
        refuse_others(context, GAPS, f"{folder}, which fills gaps")
        evaluate_gaps(folder, files, reading, as_json, computing)
        return
    if task == "stories":
        refuse_others(context, STORIES, f"{folder}, which answers questions about stories")
        evaluate_stories(folder, files, reading, out, as_json, computing, unseen)
        return
    from regard.data.sources import read_pairs
    from regard.tasks.metrics import scores_by_length, translation_scores

    pairs = read_pairs(files, reading)
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
