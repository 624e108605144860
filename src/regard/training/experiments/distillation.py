"""Distil a fine-tuned encoder into a student with some of its layers (Sanh et al., 2019); compare score and speed."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from statistics import median
from typing import Any

from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.source import EncoderSource
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.metric_table import METRICS, SPLITS
from regard.models.bert import Bert
from regard.tasks.base import Objective
from regard.tasks.distillation import DistillationObjective, select_layers, student_config, student_weights
from regard.tasks.windows import EncodedTexts
from regard.training.experiments.base import Notify, subsample_indices
from regard.training.experiments.classification import ClassificationExperiment
from regard.training.experiments.fine_tuning import EncoderExperiment
from regard.training.experiments.question_answering import QuestionAnsweringExperiment
from regard.training.experiments.tagging import TaggingExperiment

EPOCH_FACTOR = 2.0  # a student takes this many times the default epochs of fine-tuning
NUM_ROUNDS = 5  # of timing; in each, teacher and student read the same texts
TIMED_TOKENS = 16_384  # maximum of a round
MULTI_LABEL = "multi_label_classification"


class DistillationExperiment(EncoderExperiment[Any]):
    """Distil a teacher into a student; combined with the experiment of a task by inheritance."""

    # set by `prepare`
    teacher: Bert
    copied_layers: tuple[int, ...]  # of the teacher, into the student

    def build_objective(self) -> Objective:
        """Objective of the task, with the teacher's predictions and hidden states in the loss."""
        objective = super().build_objective()
        return DistillationObjective(objective, self.teacher, self.copied_layers, self.config.distillation)

    def load_pretrained(self) -> EncoderSource:
        """Load the teacher and derive the student from it; the labels are the teacher's, not those of the data."""
        loaded = load_encoder(self.config.pretrained, task=self.name)
        self._check_teacher(loaded)
        num_layers = loaded.config.stack.num_layers
        self.labels = loaded.labels
        self.default_epochs = EPOCH_FACTOR * self.default_epochs
        self.teacher = loaded.model().eval()
        self.copied_layers = select_layers(num_layers, self.config.distillation.student_layers)
        config = student_config(loaded.config, self.copied_layers)
        weights = student_weights(loaded.weights, self.copied_layers)
        return replace(loaded, config=config, arrays={name: tensor.numpy() for name, tensor in weights.items()})

    def _check_teacher(self, loaded: EncoderSource) -> None:
        source = self.config.pretrained
        if loaded.config.head != self.head:
            raise CheckpointError(
                f"{source}: a {loaded.config.head} head; a teacher for {self.name} is needed: "
                f"`regard train {self.name} DATA --from {source}` trains one"
            )
        if loaded.config.layer_groups:
            raise UsageError(f"{source}: its layers share their weights, so none can be copied: choose another teacher")
        num_layers = loaded.config.stack.num_layers
        student_layers = self.config.distillation.student_layers
        if student_layers >= num_layers:
            raise ConfigError(
                f"distillation.student_layers ({student_layers}) must be fewer than the teacher has: {source} has "
                f"{num_layers}; choose 1 to {num_layers - 1}"
            )
        if loaded.problem_type and self.problem_type and loaded.problem_type != self.problem_type:
            raise UsageError(
                f"{source} predicts {_describe_problem(loaded.problem_type)}, but the data is read as "
                f"{_describe_problem(self.problem_type)}: give data of the same kind"
            )

    def describe_model(self, num_parameters: int) -> str:
        """Describe the student and its teacher."""
        layers = ", ".join(str(layer + 1) for layer in self.copied_layers)
        teacher_layers = self.teacher.config.stack.num_layers
        teacher_size = self.teacher.num_parameters() / 1e6
        student = f"student: {num_parameters / 1e6:.2f} M parameters, {self.model_config.summary()}"
        return f"{student} (layers {layers} of the {teacher_layers} of {self.config.pretrained}, {teacher_size:.2f} M)"

    def preprocessing_metadata(self) -> dict[str, Any]:
        """Entries of task.json to encode texts as in training, and on the teacher."""
        teacher = {
            "folder": self.config.pretrained,
            "digest": self.digests["start"],
            "copied": list(self.copied_layers),
        }
        return {**super().preprocessing_metadata(), "teacher": teacher}

    def closing_seconds(self, evaluation_seconds: float) -> float:
        """Estimate the duration of evaluating student and teacher, which has more layers, and of timing both."""
        cost_of_both = 1 + self.teacher.config.stack.num_layers / max(1, len(self.copied_layers))
        timed_fraction = min(1.0, TIMED_TOKENS / max(1, self.validation_tokens()))
        timing_seconds = (NUM_ROUNDS + 1) * timed_fraction * evaluation_seconds
        return cost_of_both * (super().closing_seconds(evaluation_seconds) + timing_seconds)

    def compute_final_metrics(self, model: Bert, notify: Notify) -> tuple[dict[str, float], dict[str, Any]]:
        """Score the student with the metrics of its task, and compare score and speed with the teacher's."""
        metrics, metadata = super().compute_final_metrics(model, notify)
        teacher = self.teacher.to(model.device()).pack()
        teacher_metrics = self._score_teacher(teacher)
        for split in ("valid", "test"):
            if f"{split}_{self.metric}" not in metrics:
                continue
            score = metrics[f"{split}_{self.metric}"]
            teacher_score = teacher_metrics[f"{split}_{self.metric}"]
            percent = 100 * score / teacher_score if teacher_score else 100.0
            metrics |= {f"{split}_teacher": teacher_score, f"{split}_retained": percent}
            label = METRICS[self.metric].field_name
            notify(f"{SPLITS[split]}: {label} {score:.2f}, {percent:.1f} % of the teacher's {teacher_score:.2f}")
        ratios = speedups(model, teacher, timing_sample(self.valid.rows))
        metrics["speed"] = median(ratios)
        notify(
            f"speed: {median(ratios):.2f} times the teacher's ({min(ratios):.2f}–{max(ratios):.2f} in {NUM_ROUNDS} "
            "rounds; from token ids of validation texts to logits)"
        )
        return metrics, metadata

    def _score_teacher(self, teacher: Bert) -> dict[str, float]:
        """Score the teacher with the metrics of the task, silently and without the baseline."""
        experiment = copy.copy(self)
        experiment.config = self.config.override({"fine_tuning.baseline": False})
        metrics, _ = super(DistillationExperiment, experiment).compute_final_metrics(teacher, lambda text: None)
        return metrics


def _describe_problem(problem_type: str) -> str:
    return "several labels per text (--label-separator)" if problem_type == MULTI_LABEL else "one label per text"


def timing_sample(rows: EncodedTexts) -> EncodedTexts:
    """Select rows spread over the data, with enough tokens to time a model."""
    num_tokens = int(rows.lengths.sum())
    count = max(1, min(len(rows), len(rows) * TIMED_TOKENS // max(1, num_tokens)))
    sample = EncodedTexts()
    for index in subsample_indices(len(rows), count / len(rows)):
        sample.add(rows.rows[index], rows.token_types[index], len(sample))
    return sample


def speedups(student: Bert, teacher: Bert, rows: EncodedTexts) -> list[float]:
    """Ratio of the teacher's to the student's time in each round; a warm-up round is not counted."""
    ratios = []
    for index in range(NUM_ROUNDS + 1):
        order = (student, teacher) if index % 2 else (teacher, student)
        seconds = {model: _time_logits(model, rows) for model in order}
        ratios.append(seconds[teacher] / seconds[student])
    return ratios[1:]


def _time_logits(model: Bert, rows: EncodedTexts) -> float:
    start = time.perf_counter()
    for _ in rows.iter_logits(model):
        pass
    return time.perf_counter() - start


class ClassificationDistillation(DistillationExperiment, ClassificationExperiment):
    """Distil a classifier."""


class TaggingDistillation(DistillationExperiment, TaggingExperiment):
    """Distil a tagger."""


class QuestionAnsweringDistillation(DistillationExperiment, QuestionAnsweringExperiment):
    """Distil a question answering model."""
