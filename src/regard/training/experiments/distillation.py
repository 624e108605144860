"""Distilling: a fine-tuned encoder teaches a student that has some of its layers; how much is kept, how much faster."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from regard.checkpoint.encoder_dir import LoadedEncoder, load_encoder
from regard.config.runs import RunConfig
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.models.bert import Bert
from regard.tasks.distillation import DistillationObjective, spread_layers, student_config, student_weights
from regard.tasks.windows import EncodedTexts
from regard.training.experiments.base import Experiment, Notify
from regard.training.experiments.classification import ClassificationExperiment
from regard.training.experiments.fine_tuning import FineTuningExperiment
from regard.training.experiments.question_answering import QuestionAnsweringExperiment
from regard.training.experiments.tagging import TaggingExperiment

LONGER = 2.0  # a student takes so many times the passes of a model that has all its layers
MEASURES = ("f1", "accuracy", "micro_f1")  # the first that a task has says how much is kept
ROUNDS = 5  # in each, teacher and student read the same texts
TIMED_TOKENS = 16_384  # of validation texts that are read in a round, at most
SEVERAL = "multi_label_classification"


class DistillationExperiment(FineTuningExperiment):
    """What students of all tasks share; the task's own job stands behind it."""

    valid: Any  # what is held out, as the task reads it

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.task = DistillationObjective(self.task, self.teacher, self.copied, config.distillation)

    def load_pretrained(self) -> LoadedEncoder:
        """Open the teacher and cut the student from it; its labels count, not those of the data."""
        source, wanted = self.config.pretrained, self.config.distillation.student_layers
        found = load_encoder(source, task=self.name)
        if found.config.head != self.head:
            raise CheckpointError(
                f"{source}: a {found.config.head} head; a teacher for {self.name} is needed: "
                f"`regard train {self.name} DATA --from {source}` makes one"
            )
        if found.config.layer_groups:
            raise UsageError(f"{source}: its layers share their weights, so none can be copied: choose another teacher")
        layers = found.config.stack.num_layers
        if wanted >= layers:
            raise ConfigError(
                f"distillation.student_layers ({wanted}) must be fewer than the teacher has: {source} has {layers}; "
                f"choose 1 to {layers - 1}"
            )
        if found.problem_type and self.problem_type and found.problem_type != self.problem_type:
            many, one = "several labels a text (--label-separator)", "one label a text"
            theirs, ours = (many, one) if found.problem_type == SEVERAL else (one, many)
            raise UsageError(f"{source} gives {theirs}, but the data is read as {ours}: give data of the same kind")
        self.labels = found.labels
        self.passes = LONGER * self.passes
        self.teacher, self.copied = found.model().eval(), spread_layers(layers, wanted)
        config = student_config(found.config, self.copied)
        return replace(found, config=config, weights=student_weights(found.weights, self.copied))

    def model_line(self, parameters: int) -> str:
        """Say what the student is and whose."""
        shown = ", ".join(str(layer + 1) for layer in self.copied)
        layers, size = self.teacher.config.stack.num_layers, self.teacher.num_parameters()
        made = f"student: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()}"
        return f"{made} (layers {shown} of the {layers} of {self.config.pretrained}, {size / 1e6:.2f} M)"

    def preprocessing_metadata(self) -> dict[str, Any]:
        """Return what must be known to read texts as in training, and whose student it is."""
        teacher = {"folder": self.config.pretrained, "digest": self.digests["start"], "copied": list(self.copied)}
        return {**super().preprocessing_metadata(), "teacher": teacher}

    def closing_seconds(self, evaluation: float) -> float:
        """Estimate the seconds of scoring student and teacher, whose layers take longer, and of timing both."""
        slower = 1 + self.teacher.config.stack.num_layers / max(1, len(self.copied))
        share = min(1.0, TIMED_TOKENS / max(1, self.validation_tokens()))
        return slower * (super().closing_seconds(evaluation) + (ROUNDS + 1) * share * evaluation)

    def concluded(self, model: Bert, notify: Notify) -> tuple[dict[str, float], dict[str, Any]]:
        """Score the student as any model of its task, and beside its teacher."""
        metrics, facts = super().concluded(model, notify)
        alone = copy.copy(self)  # one baseline is enough
        alone.config = self.config.override({"fine_tuning.baseline": False})
        teacher = self.teacher.to(model.device()).pack()
        theirs, _ = super(DistillationExperiment, alone).concluded(teacher, lambda text: None)
        for part in ("valid", "test"):
            name = next((one for one in (f"{part}_{measure}" for measure in MEASURES) if one in metrics), "")
            if name:
                kept = 100 * metrics[name] / theirs[name] if theirs[name] else 100.0
                metrics |= {f"{part}_teacher": theirs[name], f"{part}_kept": kept}
                measure = name.removeprefix(f"{part}_").replace("_", " ")
                notify(f"{part}: {measure} {metrics[name]:.2f}, {kept:.1f} % of the teacher's {theirs[name]:.2f}")
        ratios = speedups(model, teacher, timing_sample(self.valid.rows))
        metrics |= {"speed": median(ratios)}
        notify(
            f"speed: {median(ratios):.2f} times the teacher's ({min(ratios):.2f}–{max(ratios):.2f} in {ROUNDS} rounds; "
            "tokens of validation texts in, scores out)"
        )
        return metrics, facts


def timing_sample(rows: EncodedTexts) -> EncodedTexts:
    """Return rows from all over the data, enough to time a model with."""
    total = int(rows.lengths.sum())
    count = max(1, min(len(rows), len(rows) * TIMED_TOKENS // max(1, total)))
    made = EncodedTexts()
    for number in np.linspace(0, len(rows) - 1, count).astype(np.int64):
        made.add(rows.rows[number], rows.token_types[number], len(made))
    return made


def speedups(student: Bert, teacher: Bert, rows: EncodedTexts) -> list[float]:
    """Return how many times as fast the student reads rows, round by round; a first round is not counted."""
    ratios = []
    for turn in range(ROUNDS + 1):
        order = (student, teacher) if turn % 2 else (teacher, student)
        taken = {model: _seconds(model, rows) for model in order}
        ratios.append(taken[teacher] / taken[student])
    return ratios[1:]


def _seconds(model: Bert, rows: EncodedTexts) -> float:
    began = time.perf_counter()
    for _ in rows.iter_logits(model):
        pass
    return time.perf_counter() - began


class ClassificationDistillation(DistillationExperiment, ClassificationExperiment):
    """A student of a classifier."""


class TaggingDistillation(DistillationExperiment, TaggingExperiment):
    """A student of a tagger."""


class QuestionAnsweringDistillation(DistillationExperiment, QuestionAnsweringExperiment):
    """A student of a model that answers by spans."""


STUDENTS: dict[str, Callable[[RunConfig, Path], Experiment]] = {  # by task
    "classify": ClassificationDistillation,
    "tag": TaggingDistillation,
    "answer": QuestionAnsweringDistillation,
}
