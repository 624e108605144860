"""`regard evaluate`: a test set translated, labelled or answered, and scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from regard.cli.answer import evaluate_answers, evaluate_stories
from regard.cli.classify import evaluate_labels
from regard.cli.fill import evaluate_gaps
from regard.cli.generate import evaluate_writing
from regard.cli.model_options import (
    ENGINE,
    ENSEMBLE,
    FILES,
    FOLDER,
    READING,
    SEARCHING,
    SPLIT,
    TestSet,
    iter_windows,
    load_translation_pipeline,
)
from regard.cli.options import Option, changed_settings, is_given, reject_other_options, verb
from regard.cli.output import align_columns, print_result, show_progress, write_lines
from regard.cli.tag import evaluate_tags
from regard.config.data import ReadConfig
from regard.config.defaults import usage_hint
from regard.config.inference import DecodingConfig
from regard.config.rnn_models import UNKNOWN_ANSWERS
from regard.errors import UsageError


def evaluate_elmo(test: TestSet) -> None:
    """Give the perplexity of running text, told from the left and from the right."""
    from regard.data.documents import read_documents
    from regard.pipeline.loaders import load_features

    scores = load_features(test.folder, **test.computing).scores(read_documents(test.files, test.reading))
    line = (
        f"{scores['documents']:,} documents, {scores['tokens']:,} tokens: perplexity {scores['perplexity']:.2f} "
        f"(from the left {scores['perplexity_forward']:.2f}, from the right {scores['perplexity_backward']:.2f})"
    )
    print_result(scores, [line], test.as_json)


HELP = """Score a model on FILES.

A translator translates their source side; BLEU, chrF and TER compare it with the target side. A classifier labels their
texts: accuracy with its 95 % interval, macro-F1 and which labels it confuses; --errors makes a page of its mistakes. A
tagger tags their sentences (CoNLL columns): strict F1 of entities. Answers to questions in the form of SQuAD: exact
match and F1. A memory network answers the questions of stories, each file a task: the share of wrong answers, and how
often the sentences that support a right answer are those that were looked at most. Language models tell plain text,
masked-word models hidden tokens of it: their perplexity.

\b
  regard evaluate runs/en-de test.en test.de
  regard evaluate runs/en-de test.tsv --beam 8 --out said.de --json
  regard evaluate runs/en-de test.en test.de --precision int8
  regard evaluate runs/mood test.csv --errors mistakes.html
  regard evaluate runs/names test.conll
  regard evaluate runs/answers squad-dev.json
  regard evaluate runs/bert test.txt
  regard evaluate runs/babi qa1_test.txt qa2_test.txt --json
"""
TEXT = ("--encoding", "--lenient", "--max-reject", "--device", "--precision", "--threads", "--off", "--json")
COLUMNS = ("--format", "--text", "--label", "--pair", "--label-separator", "--no-header", "--delimiter")
SCORED: dict[str, tuple[Callable[[TestSet], None], tuple[str, ...]]] = {  # task → what scores it, and its flags
    "classify": (evaluate_labels, ("--backend", "--out", "--errors", *COLUMNS, *TEXT)),
    "tag": (evaluate_tags, ("--backend", "--out", "--text", "--label", *TEXT)),
    "answer": (evaluate_answers, ("--backend", "--out", *TEXT)),
    "stories": (evaluate_stories, ("--out", "--unseen", *(flag for flag in TEXT if flag != "--precision"))),
    "fill": (evaluate_gaps, TEXT),
    "generate": (evaluate_writing, ("--backend", *TEXT)),
    "language": (evaluate_elmo, TEXT),
}
ONLY = {"--unseen": "stories", "--errors": "classify"}  # flags of one task
NAMES = {"bleu": "BLEU", "bleu_lowercase": "BLEU, lower-cased", "chrf": "chrF", "ter": "TER"}


def _in_torch(computing: dict[str, Any], folder: str, task: str) -> dict[str, Any]:
    """Return where a model computes that the engine never does."""
    kept = {name: value for name, value in computing.items() if name != "backend"}
    if kept["precision"] == "int8":
        raise UsageError(f"{folder}, a model for the task {task!r}: int8 is the engine's, which does not compute it")
    return {**kept, "precision": kept["precision"] or "float32"}


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
            type=click.Choice(UNKNOWN_ANSWERS),
            default="refuse",
            help="answers unseen in training: refuse them, or count them as wrong [default: refuse]",
        ),
        *READING,
        *SEARCHING,
        *ENGINE,
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
    from regard.checkpoint.model_dir import folder_task

    reading = ReadConfig().override(changed_settings(context, ReadConfig))
    task = folder_task(folder)
    for flag, owner in ONLY.items():
        if task != owner and is_given(context, flag):
            raise UsageError(f"{flag} is for {owner}: {folder} is a model for the task {task!r}")
    if task in SCORED:
        score, flags = SCORED[task]
        reject_other_options(context, flags, f"{folder}, a model for the task {task!r}")
        if "--backend" not in flags:
            computing = _in_torch(computing, folder, task)
        score(TestSet(folder, files, reading, computing, as_json, out, errors, unseen))
        return
    if task != "translate":
        raise UsageError(f"{folder}: a model for the task {task!r}, which no test set scores{usage_hint(task)}")
    from regard.data.pairs import read_pairs
    from regard.tasks.metrics import scores_by_length, translation_scores

    pairs = read_pairs(files, reading)
    model = load_translation_pipeline(folder, computing, ensemble)
    settings = changed_settings(context, DecodingConfig)
    found = (model.translate(window, split=split, **settings) for window in iter_windows(pairs.source))
    said = [str(one) for one in show_progress(found, len(pairs), "sentences")]
    if out:
        write_lines(out, said)
    scores = translation_scores(said, pairs.target)
    lengths = scores_by_length(pairs.source, said, pairs.target)
    rows = [[name, f"{scores[key]:.2f}", scores[f"{key}_signature"]] for key, name in NAMES.items()]
    lines = [f"{len(pairs):,} sentences, exact match {scores['exact_match']:.1f} %", *align_columns(rows)]
    lines += ["by words of the source:"]
    lines += [
        f"  {line}"
        for line in align_columns(
            [[one["words"], f"{one['sentences']:,}", f"BLEU {one['bleu']:.2f}"] for one in lengths]
        )
    ]
    print_result({**scores, "by_length": lengths}, lines, as_json)
