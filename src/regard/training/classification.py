"""Training a classifier on labelled texts: labels, features, the model's size, and what is kept in the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.checkpoint.reader_folder import FEATURES, copy_features, load_reader, save_reader
from regard.config.model import CLASSIFIER_PRESETS, ClassifierConfig
from regard.config.run import RunConfig
from regard.data.labelled import Labelled, check_classes, counts, hold_out, read_labelled
from regard.errors import ConfigError
from regard.models import build
from regard.models.classifier import Classifier
from regard.tasks.classification import ClassificationTask, Perception, TextRows, label_chances
from regard.tasks.features import Features
from regard.tasks.metrics import confusion, label_scores
from regard.text.learn import learn
from regard.training.card import model_card
from regard.training.job import Evaluation, Say, load_better, rejection_notes, started
from regard.training.tokenizing import kept_tokenizer

TASK = "classify"
PASSES = 20.0  # over the texts, where the user sets no length
BATCH_TEXTS = 32  # about so many texts in a batch, where the user sets no number of tokens
SMALL_DATA = 10_000  # tokens below which a smaller model is chosen


@dataclass(frozen=True)
class Part:
    """Labelled texts as the model reads them."""

    rows: TextRows
    labels: NDArray[np.int64]
    wanted: list[str]  # names of the labels

    def __len__(self) -> int:
        return len(self.labels)


class ClassificationJob:
    """Labelled texts and the classifier that learns them."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.notes: list[str] = []
        self.goes_on = False
        train = self._read(config.data.train, "training")
        self.classes = check_classes(train, config.data.train[0])
        if config.data.valid:
            valid = self._read(config.data.valid, "validation")
        else:
            train, valid = hold_out(train)
            self.notes.append(f"validation: {len(valid):,} of the texts are held out, as many of each label")
        test = self._read([config.classify.test], "test") if config.classify.test else None
        self.digests = {"train": train.digest, "valid": valid.digest}
        self.digests |= {"test": test.digest} if test is not None else {}
        self.features = self._features()
        tokenizer = kept_tokenizer(folder, lambda: learn(train.texts, config.tokenizer))
        self.perception = Perception(tokenizer, config.data.max_length, self.features)
        self.counts = counts(train)
        self.train, self.valid = self._part(train, "training"), self._part(valid, "validation")
        self.test = None if test is None else self._part(test, "test")
        self._keep_features()
        self.task = ClassificationTask(
            self.train.rows, self.train.labels, seed=config.training.seed, digest=train.digest
        )
        self.tokens = int(self.train.rows.lengths.sum())
        self.model_config, self.reason = self._model_config()
        self.width = self.model_config.encoder.width
        self.wishes: dict[str, float] = {
            "epochs": PASSES,
            "batch_tokens": max(1, BATCH_TEXTS * self.tokens // len(self.train)),
        }

    # ---- data and choices

    def _read(self, files: Sequence[str], name: str) -> Labelled:
        found = read_labelled(files, self.config.data.read)
        self.notes += rejection_notes(found, name)
        return found

    def _features(self) -> Features | None:
        """Return the frozen features, from the copy that the run's own folder has."""
        source = self.config.classify.features
        if not source:
            return None
        if not (self.folder / "run.json").exists():
            Features.opened(source)  # what is no features' folder is refused before anything is copied
            copy_features(source, self.folder)
        features = Features.opened(self.folder / FEATURES, self.config.training.device)
        self.digests["features"] = features.digest
        return features

    def _part(self, rows: Labelled, name: str) -> Part:
        labels = rows.numbers(self.classes)
        read = self.perception.read(rows.texts)
        cut = int((read.cut > 0).sum())
        if cut:
            longest, lost = self.perception.longest, int(read.cut.sum())
            self.notes.append(
                f"{cut:,} {name} texts are cut after {longest} tokens ({lost:,} tokens): see --max-length"
            )
        return Part(read, labels, rows.labels)

    def _keep_features(self) -> None:
        """Make the features of all texts once, if they fit into the memory allowed."""
        if self.features is None:
            return
        parts = [part for part in (self.train, self.valid, self.test) if part is not None]
        size, allowed = sum(part.rows.feature_bytes for part in parts), self.config.classify.features_memory
        what = f"features: {self.features.layers} frozen layers of {self.features.width}"
        if size > allowed << 20:
            self.notes.append(
                f"{what}, made anew in each batch: all would take {size >> 20:,} MB, and "
                f"--classify.features_memory allows {allowed:,}"
            )
            return
        began = time.perf_counter()
        for part in parts:
            part.rows.keep_features()
        taken = time.perf_counter() - began
        self.notes.append(f"{what}, made once for all texts and kept ({size / 2**20:,.1f} MB, {taken:.1f} s)")

    def _model_config(self) -> tuple[ClassifierConfig, str]:
        """Return the model for this data and why it was chosen."""
        given, name = self.config.classifier, self.config.preset
        reason = "as given" if name == "custom" else "as asked"
        if name == "auto":
            name = "tiny" if self.tokens < SMALL_DATA else "small"
            reason = f"{name}, for {self.tokens:,} tokens"
        if name != "custom":
            if name not in CLASSIFIER_PRESETS:
                raise ConfigError(f"preset must be one of {', '.join(CLASSIFIER_PRESETS)} for classify, not {name}")
            sizes = CLASSIFIER_PRESETS[name].encoder
            given = given.override({"encoder.embedding": sizes.embedding, "encoder.width": sizes.width})
        beside = (0, 0) if self.features is None else (self.features.layers, self.features.width)
        reader = {"vocabulary": self.perception.tokenizer.size, "feature_layers": beside[0], "feature_width": beside[1]}
        encoder = given.encoder.override(reader)
        return given.override({"labels": len(self.classes), "encoder": encoder.to_dict()}), reason

    # ---- what a run asks

    def model(self) -> Classifier:
        """Return the model with its first weights."""
        return started(build(self.model_config), self.config.training.seed)

    def evaluator(self, device: str) -> LabelEvaluator:
        """Return what measures weights."""
        return LabelEvaluator(self.model_config, self.valid, self.classes, device)

    def lines(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        shown = [f"{label} {count:,}" for label, count in self.counts.items()]
        more = f" and {len(shown) - 12} more" if len(shown) > 12 else ""
        tested = f", test {len(self.test):,}" if self.test is not None else ""
        return [
            f"data: {len(self.train):,} texts, {self.tokens:,} tokens; validation {len(self.valid):,} texts{tested}",
            f"labels: {len(self.classes)} ({', '.join(shown[:12])}{more})",
            f"tokens: {self.config.tokenizer.kind}, {self.perception.tokenizer.size:,} kinds",
            f"model: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()} ({self.reason})",
        ]

    def keep(self, evaluator: LabelEvaluator, found: Evaluation, step: int) -> None:
        """Write the measured weights as the run's model."""
        self._write(evaluator, step, {f"valid_{name}": value for name, value in found.metrics.items()})

    def _write(self, evaluator: LabelEvaluator, step: int, metrics: dict[str, Any]) -> None:
        facts: dict[str, Any] = {
            "step": step,
            "data": self.digests,
            "metrics": metrics,
            "labels": self.classes,
            "max_length": self.config.data.max_length,
        }
        if self.features is not None:
            facts["features"] = {"folder": FEATURES, "digest": self.features.digest}
            facts["features"] |= zip(("weights", "scale"), evaluator.model.encoder.mixed(), strict=True)
        card = model_card(self.config, self.model_config, evaluator.model.parameter_count(), facts)
        state, tokenizer = evaluator.model.state_dict(), self.perception.tokenizer
        save_reader(self.folder, self.model_config, state, tokenizer=tokenizer, task=TASK, facts=facts, card=card)

    def finish(
        self,
        evaluator: LabelEvaluator,
        average: Mapping[str, Tensor] | None,
        step: int,
        best: Sequence[float],
        say: Say,
    ) -> dict[str, Any]:
        """Choose between the best weights and the average on validation data, score the choice, write it."""
        kept = load_reader(self.folder, ClassifierConfig, TASK)
        chosen = step if load_better(evaluator, kept.weights, average, best, say) else int(kept.task["step"])
        metrics = {f"valid_{name}": value for name, value in evaluator.measure().metrics.items()}
        if self.test is not None:
            metrics |= {f"test_{name}": value for name, value in evaluator.scores(self.test).items()}
        self._write(evaluator, chosen, metrics)
        return metrics


class LabelEvaluator:
    """A model of its own, float32, that receives the weights to be measured."""

    def __init__(self, config: ClassifierConfig, valid: Part, classes: Sequence[str], device: str) -> None:
        self.valid, self.classes = valid, classes
        self.model: Classifier = build(config).to(device).eval()

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        self.model.load_state_dict(dict(named))

    def measure(self) -> Evaluation:
        """Return loss, accuracy and macro-F1 on validation texts."""
        began = time.perf_counter()
        chances = label_chances(self.model, self.valid.rows)
        metrics = _scores(chances, self.valid)
        said = chances.argmax(1)
        samples = [
            (self.valid.rows.texts[number], self.valid.wanted[number], self.classes[said[number]])
            for number in range(min(2, len(self.valid)))
        ]
        rank = (round(metrics["accuracy"], 4), -metrics["loss"])
        return Evaluation(metrics, rank, samples, time.perf_counter() - began)

    def scores(self, part: Part) -> dict[str, float]:
        """Return loss, accuracy and macro-F1 on other texts."""
        return _scores(label_chances(self.model, part.rows), part)


def _scores(chances: NDArray[np.float32], part: Part) -> dict[str, float]:
    right = chances[np.arange(len(part)), part.labels].astype(np.float64)
    loss = float(-np.log(np.maximum(right, 1e-12)).mean())
    found = label_scores(confusion(part.labels, chances.argmax(1), chances.shape[1]))
    return {"loss": loss, "accuracy": found["accuracy"], "macro_f1": found["macro_f1"]}
