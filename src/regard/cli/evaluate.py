"""`regard evaluate`: metrics of a model on a test set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from regard.cli.answer import evaluate_answers, evaluate_stories
from regard.cli.classify import evaluate_labels
from regard.cli.fill import evaluate_masked_lm
from regard.cli.generate import evaluate_causal_lm
from regard.cli.model_options import (
    DECODING_OPTIONS,
    ENGINE_OPTIONS,
    ENSEMBLE,
    FILES,
    MODEL_ARGUMENT,
    READ_OPTIONS,
    SPLIT,
    TestSet,
    iter_windows,
    load_translation_pipeline,
)
from regard.cli.options import Option, changed_settings, is_on_command_line, reject_other_options, verb
from regard.cli.output import align_columns, print_result, show_progress, write_lines
from regard.cli.tag import evaluate_tags
from regard.config.data import ReadConfig
from regard.config.defaults import usage_hint
from regard.config.inference import DecodingConfig
from regard.config.rnn_models import UNKNOWN_ANSWERS
from regard.errors import UsageError


def evaluate_elmo(test: TestSet) -> None:
    """Perplexity of running text, forward and backward."""
    from regard.data.documents import read_documents
    from regard.pipeline.loaders import load_features

    model = load_features(test.folder, **test.load_options)
    scores = model.evaluate(read_documents(test.files, test.read_config))
    line = (
        f"{scores['documents']:,} documents, {scores['tokens']:,} tokens: perplexity {scores['perplexity']:.2f} "
        f"(forward {scores['perplexity_forward']:.2f}, backward {scores['perplexity_backward']:.2f})"
    )
    print_result(scores, [line], test.as_json)


HELP = """Evaluate a model on FILES.

Translation: BLEU, chrF and TER of the translated source side against the target side. Classification: accuracy with its
95 % interval, macro-F1 and the confusion matrix; --errors writes a page of error analysis. Token classification (CoNLL
columns): strict F1 of entities. Question answering (SQuAD format): exact match and F1. Memory networks (bAbI format,
each file a task): error rate, and how often attention is highest on the supporting sentences. Language models, causal
or masked: perplexity on plain text.

\b
  regard evaluate runs/en-de test.en test.de
  regard evaluate runs/en-de test.tsv --beam 8 --out hypotheses.de --json
  regard evaluate runs/en-de test.en test.de --precision int8
  regard evaluate runs/mood test.csv --errors mistakes.html
  regard evaluate runs/names test.conll
  regard evaluate runs/answers squad-dev.json
  regard evaluate runs/bert test.txt
  regard evaluate runs/babi qa1_test.txt qa2_test.txt --json
"""
TEXT_FLAGS = ("--encoding", "--lenient", "--max-reject", "--device", "--precision", "--threads", "--off", "--json")
COLUMN_FLAGS = ("--format", "--text", "--label", "--pair", "--label-separator", "--no-header", "--delimiter")
STORY_FLAGS = tuple(flag for flag in TEXT_FLAGS if flag != "--precision")
EVALUATORS: dict[str, tuple[Callable[[TestSet], None], tuple[str, ...]]] = {  # task → function and flags
    "classify": (evaluate_labels, ("--backend", "--out", "--errors", *COLUMN_FLAGS, *TEXT_FLAGS)),
    "tag": (evaluate_tags, ("--backend", "--out", "--text", "--label", *TEXT_FLAGS)),
    "answer": (evaluate_answers, ("--backend", "--out", *TEXT_FLAGS)),
    "story-qa": (evaluate_stories, ("--out", "--unseen", *STORY_FLAGS)),
    "masked-lm": (evaluate_masked_lm, TEXT_FLAGS),
    "causal-lm": (evaluate_causal_lm, ("--backend", *TEXT_FLAGS)),
    "elmo": (evaluate_elmo, TEXT_FLAGS),
}
SINGLE_TASK_FLAGS = {"--unseen": "story-qa", "--errors": "classify"}
METRIC_NAMES = {"bleu": "BLEU", "bleu_lowercase": "BLEU, lower-cased", "chrf": "chrF", "ter": "TER"}


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        FILES,
        Option(["--out"], metavar="FILE", help="write the predictions here"),
        SPLIT,
        ENSEMBLE,
        Option(["--errors"], metavar="FILE", help="write a page of error analysis of a classifier here"),
        Option(
            ["--unseen", "unknown_answers"],
            type=click.Choice(UNKNOWN_ANSWERS),
            default="refuse",
            help="answers that never occur in training: refuse them, or count them as wrong [default: refuse]",
        ),
        *READ_OPTIONS,
        *DECODING_OPTIONS,
        *ENGINE_OPTIONS,
    ],
)
def evaluate(
    context: click.Context,
    folder: str,
    files: tuple[str, ...],
    out: str | None,
    split: bool,
    ensemble: tuple[str, ...],
    unknown_answers: str,
    errors: str | None,
    as_json: bool,
    **load_options: Any,
) -> None:
    """Evaluate a model by its task."""
    from regard.checkpoint.model_dir import folder_task

    task = folder_task(folder)
    for flag, flag_task in SINGLE_TASK_FLAGS.items():
        if task != flag_task and is_on_command_line(context, flag):
            raise UsageError(f"{flag} is for {flag_task}: {folder} is a model for the task {task!r}")
    test = TestSet(
        folder,
        files,
        read_config=ReadConfig().override(changed_settings(context, ReadConfig)),
        load_options=load_options,
        as_json=as_json,
        out=out,
        errors=errors,
        unknown_answers=unknown_answers,
    )
    if task in EVALUATORS:
        _evaluate_task(context, task, test)
    elif task == "translate":
        _evaluate_translation(test, ensemble, split, changed_settings(context, DecodingConfig))
    else:
        raise UsageError(f"{folder}: a model for the task {task!r}, which cannot be evaluated{usage_hint(task)}")


def _evaluate_task(context: click.Context, task: str, test: TestSet) -> None:
    """Check the flags against the task and evaluate."""
    from dataclasses import replace

    evaluate_model, flags = EVALUATORS[task]
    reject_other_options(context, flags, f"{test.folder}, a model for the task {task!r}")
    if "--backend" not in flags:
        test = replace(test, load_options=_torch_options(test, task))
    evaluate_model(test)


def _torch_options(test: TestSet, task: str) -> dict[str, Any]:
    """Load options of a model that only torch runs."""
    options = {name: option for name, option in test.load_options.items() if name != "backend"}
    if options["precision"] == "int8":
        raise UsageError(f"{test.folder}, a model for the task {task!r}: int8 needs the engine, which does not run it")
    return {**options, "precision": options["precision"] or "float32"}


def _evaluate_translation(
    test: TestSet, ensemble: tuple[str, ...], split: bool, decoding_settings: dict[str, Any]
) -> None:
    """Translate the source side and compare with the target side."""
    from regard.data.pairs import read_pairs
    from regard.tasks.metrics import scores_by_length, translation_scores

    pairs = read_pairs(test.files, test.read_config)
    model = load_translation_pipeline(test.folder, test.load_options, ensemble)
    batches = (model.translate(window, split=split, **decoding_settings) for window in iter_windows(pairs.source))
    hypotheses = [str(translation) for translation in show_progress(batches, len(pairs), "sentences")]
    if test.out:
        write_lines(test.out, hypotheses)
    scores = translation_scores(hypotheses, pairs.target)
    groups = scores_by_length(pairs.source, hypotheses, pairs.target)
    metrics = [[name, f"{scores[key]:.2f}", scores[f"{key}_signature"]] for key, name in METRIC_NAMES.items()]
    by_length = [[group["words"], f"{group['sentences']:,}", f"BLEU {group['bleu']:.2f}"] for group in groups]
    lines = [
        f"{len(pairs):,} sentences, exact match {scores['exact_match']:.1f} %",
        *align_columns(metrics),
        "by source words:",
        *(f"  {line}" for line in align_columns(by_length)),
    ]
    print_result({**scores, "by_length": groups}, lines, test.as_json)
