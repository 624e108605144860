"""The task: texts are spam or not. Its model is trained from scratch, and its folder records a suspicious word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.config.architecture import Architecture
from regard.config.settings import Config, knob
from regard.config.text_classifier import TextClassifierRun
from regard.registry import Task, TaskMetrics
from spam_filter.family import LogEncoderConfig


@dataclass(frozen=True, kw_only=True)
class SpamConfig(Config):
    """Settings that only this task has."""

    word: str = knob("lottery", "Word that the model card warns of.")


@dataclass(frozen=True, kw_only=True)
class SpamRun(TextClassifierRun):
    """A spam filter."""

    task: str = knob("spam", "Task to train.", choices=("spam",))
    model: LogEncoderConfig = knob(LogEncoderConfig, "Encoder.")
    spam: SpamConfig = knob(SpamConfig, "Spam filter.")


def build_experiment(config: SpamRun, folder: Any) -> Any:
    """Train a classifier as for any labelled texts, and keep the word in task.json."""
    from regard.training.experiments.text_classification import TextClassificationExperiment

    class SpamExperiment(TextClassificationExperiment):
        def metadata(self, evaluator: Any) -> dict[str, Any]:
            return {**super().metadata(evaluator), "word": config.spam.word}

    return SpamExperiment(config, folder)


TASK = Task(
    field_name="spam filter",
    tag="text-classification",
    command="regard see",
    example='regard see {} "A text."',
    load="regard.pipeline.loaders:load_text_classifier",
    evaluate="regard.cli.classify:evaluate_labels",
    request="regard.interpret.record_request:classify_text",
    head_study="regard.interpret.encoder_subjects:LabelSubject.read",
    architectures={
        "counts": Architecture(is_baseline=True),
        "log-encoder": Architecture(),
        "narrow": Architecture({"model.hidden_size": 8}),
    },
    comparison="regard.report.comparison.tasks:LabelComparison",
    run_config=SpamRun,
    summary="train a spam filter",
    data="labelled texts: a file with two columns (.tsv, .csv, .jsonl)",
    commands=("mails.tsv --out runs/spam",),
    experiments={"log-encoder": build_experiment},
    procedure="regard.training.run:build_seed_procedure",
    read_examples="regard.data.labelled:read_labelled",
    metrics={"labels": TaskMetrics(("loss", "accuracy", "macro_f1"), ranking=("accuracy", "loss"))},
    has_many_files=False,
)
