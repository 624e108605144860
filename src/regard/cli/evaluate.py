"""`regard evaluate`: metrics of a model on a test set."""

from __future__ import annotations

from typing import Any

import click

from regard.cli.model_options import (
    DECODING_OPTIONS,
    ENGINE_OPTIONS,
    ENSEMBLE,
    EVALUATIONS,
    FILES,
    MODEL_ARGUMENT,
    READ_OPTIONS,
    SPLIT_ROWS,
    TABLE_FLAGS,
    TEXT_FLAGS,
    TestSet,
    evaluator,
    iter_windows,
    load_translation_pipeline,
)
from regard.cli.options import Option, changed_settings, reject_other_options, verb
from regard.cli.output import align_columns, note_each, print_result, show_progress, write_lines
from regard.config.data import ReadConfig
from regard.config.inference import DecodingConfig
from regard.config.rnn_models import UNKNOWN_ANSWERS
from regard.errors import UsageError
from regard.metric_table import METRICS, default_metrics, describe_metric_name, metrics_of
from regard.registry import TASKS, resolve, usage_hint


@evaluator("--metric", *TEXT_FLAGS, output=f"{EVALUATIONS}:LanguageModelEvaluation")
def evaluate_elmo(test: TestSet) -> None:
    """Perplexity of running text, forward and backward."""
    from regard.data.documents import read_documents
    from regard.pipeline.loaders import load_features

    model = load_features(test.folder, **test.load_options)
    scores = model.evaluate(read_documents(test.files, test.read_config), metrics=test.metrics)
    line = (
        f"{scores['documents']:,} documents, {scores['tokens']:,} tokens: perplexity {scores['perplexity']:.2f} "
        f"(forward {scores['perplexity_forward']:.2f}, backward {scores['perplexity_backward']:.2f})"
    )
    print_result(scores, [line, *test.metric_lines(scores)], test.as_json)


HELP = """Evaluate a model on FILES.

Translation: BLEU, chrF and TER of the translated source side against the target side. Classification: accuracy with its
95 % interval, macro-F1 and the confusion matrix; --page writes an error analysis. Token classification (CoNLL
columns): strict F1 of entities. Question answering (SQuAD format): exact match and F1. Memory networks (bAbI format,
each file a task): error rate, and how often attention is highest on the supporting sentences. Language models, causal
or masked: perplexity on plain text. These metrics are always computed; --metric adds others by name. Classifiers are
evaluated on the columns of their training, unless --text or --label is set.

\b
  regard evaluate runs/en-de test.en test.de
  regard evaluate runs/en-de test.tsv --beam 8 --out hypotheses.de --json
  regard evaluate runs/en-de test.en test.de --precision int8
  regard evaluate runs/mood test.csv --page mistakes.html
  regard evaluate runs/mood test.csv --metric mcc --metric weighted_f1
  regard evaluate runs/names test.conll
  regard evaluate runs/answers squad-dev.json
  regard evaluate runs/bert test.txt
  regard evaluate runs/babi qa1_test.txt qa2_test.txt --json
"""


def _list_metrics() -> str:
    """Names of the metrics of every task that can be evaluated."""
    lists: dict[tuple[str, ...], list[str]] = {}
    for task, row in TASKS.items():
        if row.evaluate is not None and row.metrics:
            is_language_model = default_metrics(task) == ("loss",)  # other evaluations do not compute a loss
            names = (name for name in metrics_of(task) if is_language_model or name not in ("loss", "perplexity"))
            lists.setdefault(tuple(names), []).append(task)
    return (
        ". ".join(
            f"{', '.join(tasks)}: {', '.join(map(describe_metric_name, names))}" for names, tasks in lists.items()
        )
        + "."
    )


PAIR_FLAGS = ("--source", "--target", *TABLE_FLAGS)
# further hypotheses of a sentence are not evaluated
SEARCH_OPTIONS = [option for option in DECODING_OPTIONS if option.opts[0] not in ("--nbest", "--diversity-penalty")]
DECODING_FLAGS = tuple(option.opts[0] for option in SEARCH_OPTIONS)
SHOWN_METRICS = ("bleu", "bleu_lowercase", "chrf", "ter")


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        FILES,
        Option(["--out"], metavar="FILE", help="Write the predictions here."),
        Option(
            ["--metric", "metrics"],
            multiple=True,
            metavar="NAME",
            help=f"Further metric; may be repeated. {_list_metrics()}",
        ),
        SPLIT_ROWS,
        ENSEMBLE,
        Option(["--page"], metavar="FILE", help="Write the error analysis of a classifier as an HTML page."),
        Option(
            ["--unknown-answers"],
            type=click.Choice(UNKNOWN_ANSWERS),
            default="wrong",
            help="Answers that never occur in training: stop with an error, or count as wrong. [default: wrong]",
        ),
        *READ_OPTIONS,
        *SEARCH_OPTIONS,
        *ENGINE_OPTIONS,
    ],
    output=[f"{EVALUATIONS}:evaluation_outputs"],
)
def evaluate(
    context: click.Context,
    folder: str,
    files: tuple[str, ...],
    out: str | None,
    metrics: tuple[str, ...],
    split: bool,
    ensemble: tuple[str, ...],
    unknown_answers: str,
    page: str | None,
    as_json: bool,
    **load_options: Any,
) -> None:
    """Evaluate a model by its task."""
    from regard.checkpoint.model_dir import folder_task
    from regard.tasks.scoring import Scoring

    task = folder_task(folder)
    evaluate_model = resolve(TASKS[task].evaluate)
    if evaluate_model is None:
        raise UsageError(f"{folder}: a model for the task {task!r}, which cannot be evaluated{usage_hint(task)}")
    flags = getattr(evaluate_model, "flags", TEXT_FLAGS)
    reject_other_options(context, flags, f"{folder}, a model for the task {task!r}")
    if metrics:
        Scoring(task, metrics).check()
    test = TestSet(
        folder,
        files,
        read_config=ReadConfig().override(changed_settings(context, ReadConfig)),
        load_options=load_options if "--backend" in flags else _torch_options(folder, task, load_options),
        as_json=as_json,
        out=out,
        page=page,
        unknown_answers=unknown_answers,
        ensemble=ensemble,
        split=split,
        decoding=changed_settings(context, DecodingConfig),
        metrics=tuple(dict.fromkeys(metrics)),
    )
    evaluate_model(test)


def _torch_options(folder: str, task: str, load_options: dict[str, Any]) -> dict[str, Any]:
    """Load options of a model that only torch runs."""
    options = {name: option for name, option in load_options.items() if name != "backend"}
    if options["precision"] == "int8":
        raise UsageError(f"{folder}, a model for the task {task!r}: int8 needs the engine, which does not run it")
    return {**options, "precision": options["precision"] or "float32"}


@evaluator(
    *("--backend", "--out", "--metric", "--split", "--ensemble", *PAIR_FLAGS, *TEXT_FLAGS, *DECODING_FLAGS),
    output=f"{EVALUATIONS}:TranslationEvaluation",
)
def evaluate_translation(test: TestSet) -> None:
    """Translate the source side and compare with the target side."""
    from regard.data.pairs import read_pairs
    from regard.tasks.metrics import scores_by_length
    from regard.tasks.scoring import Scoring, translation_scores

    pairs = read_pairs(test.files, test.read_config)
    note_each(pairs.notes)
    model = load_translation_pipeline(test.folder, test.load_options, test.ensemble)
    batches = (model.translate(window, split=test.split, **test.decoding) for window in iter_windows(pairs.source))
    hypotheses = [str(translation) for translation in show_progress(batches, len(pairs), "sentences")]
    if test.out:
        write_lines(test.out, hypotheses)
    scores = translation_scores(hypotheses, pairs.target, Scoring(model.task_name, test.metrics))
    groups = scores_by_length(pairs.source, hypotheses, pairs.target)
    metrics = [
        [METRICS[name].field_name, METRICS[name].format.format(scores[name]), scores[f"{name}_signature"]]
        for name in SHOWN_METRICS
    ]
    by_length = [[group["words"], f"{group['sentences']:,}", f"BLEU {group['bleu']:.2f}"] for group in groups]
    lines = [
        f"{len(pairs):,} sentences, exact match {scores['exact_match']:.1f} %",
        *align_columns(metrics),
        "by source words:",
        *(f"  {line}" for line in align_columns(by_length)),
        *test.metric_lines(scores, shown=(*SHOWN_METRICS, "exact_match")),
    ]
    print_result({**scores, "by_length": groups}, lines, test.as_json)
