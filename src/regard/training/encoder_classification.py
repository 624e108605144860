"""Fine-tuning an encoder to classify: one label a text, several, or labels of pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.run import RunConfig
from regard.data.labelled import Labelled, check_classes, counts, hold_out, listed, read_labelled
from regard.models.encoder import Encoder
from regard.tasks.baseline import Baseline, Gain, f1_gain, paired_gain
from regard.tasks.calibration import (
    BINS,
    best_temperature,
    best_thresholds,
    calibration_error,
    label_loss,
    marks_loss,
    several_f1,
    sigmoid,
    softmax,
)
from regard.tasks.classification import EncodedTask
from regard.tasks.encoding import Encoded, balanced_weights, read_texts, text_scores
from regard.tasks.metrics import confusion, label_scores
from regard.training.classification import HELD_OUT
from regard.training.fine_tuning import EncoderJob
from regard.training.gain import told_gain
from regard.training.job import Say
from regard.training.keeping import Measured, measured_on, spread_indices
from regard.training.parts import Parts
from regard.training.trivial import constant_labels, majority_label
from regard.training.verdict import TrivialBaseline

Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Part:
    """Labelled texts as the encoder reads them."""

    given: Labelled
    rows: Encoded
    wanted: NDArray[Any]  # [texts], or marks [texts, labels]


class EncoderClassificationJob(EncoderJob):
    """Labelled texts and the encoder that learns them."""

    name, head, passes, batch_rows = "classify", "label", 3.0, 32

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(config, folder)
        parts = Parts.of(config, read_labelled, self._check, hold_out, HELD_OUT)
        self.begin(parts)
        self.counts = counts(parts.train)
        missing = [name for name in self.names if name not in counts(parts.valid)]
        if missing:
            self.notes.append(f"no validation text has the label {listed(missing)}: it is not measured")
        self.train, self.valid = self._part(parts.train, "training"), self._part(parts.valid, "validation")
        self.test = None if parts.test is None else self._part(parts.test, "test")
        rows = self.train.rows
        self.learn(rows)
        seed, digest = config.training.seed, parts.train.digest
        self.task = EncodedTask(
            rows, self.train.wanted, seed=seed, digest=digest, weights=self._weights(), kept=self.kept_states(rows)
        )
        if config.training.minutes and config.classify.baseline:
            _ = self.baseline  # fitted now, so that the time left for training is known

    def _check(self, train: Labelled) -> None:
        self.several = bool(train.separator)
        self.names = tuple(check_classes(train, self.config.data.train[0]))
        self.problem = "multi_label_classification" if self.several else "single_label_classification"

    def _part(self, given: Labelled, name: str) -> Part:
        wanted = given.marks(self.names) if self.several else given.numbers(self.names)
        rows = read_texts(self.framing, given.texts, given.pairs, self.longest)
        self.account(rows.account, name)
        return Part(given, rows, wanted)

    def _weights(self) -> NDArray[np.float32] | None:
        if self.config.classify.weights == "equal":
            return None
        found = np.array([self.counts.get(name, 0) for name in self.names], dtype=np.int64)
        if not self.several:
            return balanced_weights(found)
        return ((len(self.train.given) - found) / np.maximum(1, found)).clip(1, 100).astype(np.float32)

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        shown = listed([f"{label} {count:,}" for label, count in self.counts.items()], 12)
        tested = f", test {len(self.test.given):,}" if self.test is not None else ""
        what = "pairs of texts" if self.train.given.pairs is not None else "texts"
        many = ", several a text" if self.several else ""
        data = f"data: {len(self.train.given):,} {what}, {self.tokens:,} tokens; validation {len(self.valid.given):,}"
        return [data + tested, f"labels: {len(self.names)}{many} ({shown})", self.model_line(parameters)]

    def reading(self) -> dict[str, Any]:
        """Return what must be known to read texts as in training."""
        read = self.config.data.read
        return {"labels": list(self.names), "separator": read.separator, "pairs": bool(read.pair)}

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation data only."""
        given = self.valid.given
        self.valid = self._part(given.chosen(spread_indices(len(given), share)), "validation")

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Accuracy of the most frequent label; where texts have several, F1 of giving all."""
        if self.several:
            return [constant_labels(self.train.wanted, self.valid.wanted)]
        balanced = self.config.classify.weights == "balanced"
        return [majority_label(self.train.wanted, self.valid.wanted, self.names, balanced=balanced)]

    # ---- measures

    def read(self) -> Encoded:
        """Return the validation rows."""
        return self.valid.rows

    def measured(self, model: Encoder) -> Measured:
        """Return loss and shares of right labels on validation texts."""
        scores = self._scores(model, self.valid)
        metrics = self._metrics(scores, self.valid, 1.0, None)
        said = self._said(scores[:2], 1.0, None)
        samples = [*zip(self.valid.given.texts[:2], self.valid.given.labels[:2], said, strict=False)]
        best = metrics["micro_f1" if self.several else "accuracy"]
        return metrics, (round(best, 4), -metrics["loss"]), samples

    def _scores(self, model: Encoder, part: Part) -> Scores:
        return text_scores(model, part.rows, len(part.given))

    def _said(self, scores: Scores, temperature: float, thresholds: NDArray[np.float64] | None) -> list[str]:
        if not self.several:
            return [self.names[number] for number in scores.argmax(1)]
        marks = self._given(scores, temperature, thresholds)
        separator = self.config.data.read.separator
        return [separator.join(self.names[number] for number in np.flatnonzero(row)) for row in marks]

    def _given(self, scores: Scores, temperature: float, thresholds: NDArray[np.float64] | None) -> NDArray[np.bool_]:
        return np.asarray(sigmoid(scores, temperature) >= (0.5 if thresholds is None else thresholds))

    def _metrics(
        self, scores: Scores, part: Part, temperature: float, thresholds: NDArray[np.float64] | None
    ) -> dict[str, float]:
        if self.several:
            loss = marks_loss(scores, part.wanted, temperature)
            return {"loss": loss, **several_f1(self._given(scores, temperature, thresholds), part.wanted)}
        found = label_scores(confusion(part.wanted, scores.argmax(1), len(self.names)))
        loss = label_loss(scores, part.wanted, temperature)
        return {"loss": loss, "accuracy": found["accuracy"], "macro_f1": found["macro_f1"]}

    def _calibration(self, scores: Scores, part: Part, temperature: float) -> float:
        if self.several:
            chances = sigmoid(scores, temperature)
            sure = np.maximum(chances, 1 - chances)
            return calibration_error(sure.ravel(), ((chances >= 0.5) == (part.wanted > 0)).ravel())
        chances = softmax(scores, temperature)
        return calibration_error(chances.max(1), chances.argmax(1) == part.wanted)

    def concluded(self, model: Encoder, say: Say) -> tuple[dict[str, float], dict[str, Any]]:
        """Tune temperature and thresholds on validation texts; score these and the test's, beside the baseline."""
        valid = self._scores(model, self.valid)
        temperature = best_temperature(valid, self.valid.wanted)
        thresholds = best_thresholds(sigmoid(valid, temperature), self.valid.wanted) if self.several else None
        facts: dict[str, Any] = {"temperature": temperature}
        facts |= {} if thresholds is None else {"thresholds": dict(zip(self.names, thresholds.tolist(), strict=True))}
        metrics: dict[str, float] = {}
        base = self.baseline if self.config.classify.baseline else None
        for name, part in (("valid", self.valid), ("test", self.test)):
            if part is None:
                continue
            scores = valid if name == "valid" else self._scores(model, part)
            found = self._metrics(scores, part, temperature, thresholds)
            found["calibration_error_before"] = self._calibration(scores, part, 1.0)
            found["calibration_error"] = self._calibration(scores, part, temperature)
            if thresholds is not None:
                found["macro_f1_before"] = several_f1(self._given(scores, temperature, None), part.wanted)["macro_f1"]
            metrics |= measured_on(name, found)
            _say_tuned(found, name, say)
            if base is not None and (name == "test") == (self.test is not None):
                metrics |= self._beside(base, part, scores, (temperature, thresholds), name, say)
        return metrics, facts

    @cached_property
    def baseline(self) -> Baseline:
        """The simple model of word counts, trained on the same texts."""
        given, valid = self.train.given, self.valid
        return Baseline.fitted(
            given.texts,
            self.train.wanted,
            len(self.names),
            pairs=given.pairs,
            valid=(valid.given.texts, valid.given.pairs, valid.wanted),
        )

    def _beside(
        self,
        base: Baseline,
        part: Part,
        scores: Scores,
        tuned: tuple[float, NDArray[np.float64] | None],
        name: str,
        say: Say,
    ) -> dict[str, float]:
        """Return how the baseline does on the same texts, and what attention gives over it."""
        theirs = base.scores(part.given.texts, part.given.pairs)
        if not self.several:
            right = [found.argmax(1) == part.wanted for found in (scores, theirs)]
            gain: Gain = paired_gain(*right)
            return told_gain(gain, 100 * float(right[1].mean()), name, "baseline (words counted) accuracy", say)
        valid = base.scores(self.valid.given.texts, self.valid.given.pairs)
        levels = best_thresholds(sigmoid(valid), self.valid.wanted)
        given = [self._given(scores, *tuned), self._given(theirs, 1.0, levels)]
        wanted = part.wanted > 0
        counted = [np.stack([one & wanted, one, wanted], axis=2).astype(np.int64) for one in given]
        score = several_f1(given[1], part.wanted)["macro_f1"]
        return told_gain(f1_gain(*counted), score, name, "baseline (words counted) macro-F1", say)


def _say_tuned(found: Mapping[str, float], name: str, say: Say) -> None:
    """Say what tuning on validation texts changed."""
    before, after = found["calibration_error_before"], found["calibration_error"]
    say(f"{name}: calibration error ({BINS} bins) {before:.4f} before calibration, {after:.4f} after")
    if "macro_f1_before" in found:
        at, tuned = found["macro_f1_before"], found["macro_f1"]
        say(f"{name}: macro-F1 {at:.2f} % with thresholds of 0.5, {tuned:.2f} % with tuned ones")
