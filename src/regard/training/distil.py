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

from regard.checkpoint.encoder_folder import LoadedEncoder, load_encoder
from regard.config.run import RunConfig
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.models.encoder import Encoder
from regard.tasks.distil import DistilTask, spread, student_config, student_weights
from regard.tasks.encoding import Encoded
from regard.training.answering import AnsweringJob
from regard.training.encoder_classification import EncoderClassificationJob
from regard.training.fine_tuning import EncoderJob
from regard.training.job import Job, Say
from regard.training.tagging import TaggingJob

LONGER = 2.0  # a student takes so many times the passes of a model that has all its layers
MEASURES = ("f1", "accuracy", "micro_f1")  # the first that a task has says how much is kept
ROUNDS = 5  # in each, teacher and student read the same texts
TIMED_TOKENS = 16_384  # of validation texts that are read in a round, at most
SEVERAL = "multi_label_classification"


class Student(EncoderJob):
    """What students of all tasks share; the task's own job stands behind it."""

    valid: Any  # what is held out, as the task reads it

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        self.task = DistilTask(self.task, self.teacher, self.copied, config.distil)

    def opened(self) -> LoadedEncoder:
        """Open the teacher and cut the student from it; its labels count, not those of the data."""
        source, wanted = self.config.start_from, self.config.distil.layers
        found = load_encoder(source, task=self.name)
        if found.config.head != self.head:
            raise CheckpointError(
                f"{source}: a {found.config.head} head; a teacher for {self.name} is needed: "
                f"`regard train {self.name} DATA --from {source}` makes one"
            )
        if found.config.groups:
            raise UsageError(f"{source}: its layers share their weights, so none can be copied: choose another teacher")
        layers = found.config.stack.layers
        if wanted >= layers:
            raise ConfigError(
                f"distil.layers ({wanted}) must be fewer than the teacher has: {source} has {layers}; "
                f"choose 1 to {layers - 1}"
            )
        if found.problem and self.problem and found.problem != self.problem:
            many, one = "several labels a text (--separator)", "one label a text"
            theirs, ours = (many, one) if found.problem == SEVERAL else (one, many)
            raise UsageError(f"{source} gives {theirs}, but the data is read as {ours}: give data of the same kind")
        self.names = found.labels
        self.passes = LONGER * self.passes
        self.teacher, self.copied = found.model().eval(), spread(layers, wanted)
        config = student_config(found.config, self.copied)
        return replace(found, config=config, weights=student_weights(found.weights, self.copied))

    def model_line(self, parameters: int) -> str:
        """Say what the student is and whose."""
        shown = ", ".join(str(layer + 1) for layer in self.copied)
        layers, size = self.teacher.config.stack.layers, self.teacher.parameter_count()
        made = f"student: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()}"
        return f"{made} (layers {shown} of the {layers} of {self.config.start_from}, {size / 1e6:.2f} M)"

    def reading(self) -> dict[str, Any]:
        """Return what must be known to read texts as in training, and whose student it is."""
        teacher = {"folder": self.config.start_from, "digest": self.digests["start"], "copied": list(self.copied)}
        return {**super().reading(), "teacher": teacher}

    def closing_seconds(self, evaluation: float) -> float:
        """Estimate the seconds of scoring student and teacher, whose layers take longer, and of timing both."""
        slower = 1 + self.teacher.config.stack.layers / max(1, len(self.copied))
        share = min(1.0, TIMED_TOKENS / max(1, self.validation_tokens()))
        return slower * (super().closing_seconds(evaluation) + (ROUNDS + 1) * share * evaluation)

    def concluded(self, model: Encoder, say: Say) -> tuple[dict[str, float], dict[str, Any]]:
        """Score the student as any model of its task, and beside its teacher."""
        metrics, facts = super().concluded(model, say)
        alone = copy.copy(self)  # one baseline is enough
        alone.config = self.config.override({"classify.baseline": False})
        teacher = self.teacher.to(model.device()).pack()
        theirs, _ = super(Student, alone).concluded(teacher, lambda text: None)
        for part in ("valid", "test"):
            name = next((one for one in (f"{part}_{measure}" for measure in MEASURES) if one in metrics), "")
            if name:
                kept = 100 * metrics[name] / theirs[name] if theirs[name] else 100.0
                metrics |= {f"{part}_teacher": theirs[name], f"{part}_kept": kept}
                measure = name.removeprefix(f"{part}_").replace("_", " ")
                say(f"{part}: {measure} {metrics[name]:.2f}, {kept:.1f} % of the teacher's {theirs[name]:.2f}")
        ratios = speeds(model, teacher, timed(self.valid.rows))
        metrics |= {"speed": median(ratios)}
        say(
            f"speed: {median(ratios):.2f} times the teacher's ({min(ratios):.2f}–{max(ratios):.2f} in {ROUNDS} rounds; "
            "tokens of validation texts in, scores out)"
        )
        return metrics, facts


def timed(rows: Encoded) -> Encoded:
    """Return rows from all over the data, enough to time a model with."""
    total = int(rows.lengths.sum())
    count = max(1, min(len(rows), len(rows) * TIMED_TOKENS // max(1, total)))
    made = Encoded()
    for number in np.linspace(0, len(rows) - 1, count).astype(np.int64):
        made.add(rows.rows[number], rows.types[number], len(made))
    return made


def speeds(student: Encoder, teacher: Encoder, rows: Encoded) -> list[float]:
    """Return how many times as fast the student reads rows, round by round; a first round is not counted."""
    ratios = []
    for turn in range(ROUNDS + 1):
        order = (student, teacher) if turn % 2 else (teacher, student)
        taken = {model: _seconds(model, rows) for model in order}
        ratios.append(taken[teacher] / taken[student])
    return ratios[1:]


def _seconds(model: Encoder, rows: Encoded) -> float:
    began = time.perf_counter()
    for _ in rows.scored(model):
        pass
    return time.perf_counter() - began


class ClassifierStudent(Student, EncoderClassificationJob):
    """A student of a classifier."""


class TaggerStudent(Student, TaggingJob):
    """A student of a tagger."""


class AnswererStudent(Student, AnsweringJob):
    """A student of a model that answers by spans."""


STUDENTS: dict[str, Callable[[RunConfig, Path], Job]] = {  # by task
    "classify": ClassifierStudent,
    "tag": TaggerStudent,
    "answer": AnswererStudent,
}
