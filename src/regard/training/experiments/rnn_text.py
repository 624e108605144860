"""Training readers with words of their own: the tokenizer, frozen features beside the words, sizes, what is kept."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from regard.checkpoint.native import FEATURES, copy_features, save_rnn_text
from regard.config.rnn_models import RNN_TEXT_PRESETS, RnnClassifierConfig, RnnTaggerConfig, RnnTextConfig
from regard.config.runs import RunConfig
from regard.models.rnn_text import RnnTextModel
from regard.tasks.elmo import ElmoFeatures
from regard.tasks.rnn_text import RnnPreprocessor, RnnTexts
from regard.text.train import train_tokenizer
from regard.training.evaluation import Evaluator
from regard.training.experiments.base import BaseExperiment, Data, DataSplits, choose_preset, load_or_train_tokenizer

PASSES = 20.0  # over the texts, where the user sets no length
BATCH_TEXTS = 32  # about so many texts in a batch, where the user sets no number of tokens
SMALL_DATA = 10_000  # tokens below which a smaller model is chosen


class RnnTextEvaluator(Evaluator, Protocol):
    """What measures a reader."""

    @property
    def model(self) -> RnnTextModel: ...


Family = TypeVar("Family", RnnClassifierConfig, RnnTaggerConfig)
Measuring = TypeVar("Measuring", bound=RnnTextEvaluator)


class RnnTextExperiment(BaseExperiment[Family, Measuring]):
    """Labelled texts and the reader that learns them.

    A task reads its data, calls `begin` with it, reads all texts by `perception`, and then calls `learn`.
    """

    is_pretrained = False

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.notes: list[str] = []
        self.digests: dict[str, str] = {}
        self.labels: list[str] = []  # of labels or tags

    def begin(self, parts: DataSplits[Data], texts: Sequence[str]) -> None:
        """Take the data, open the features, and learn a tokenizer from the training texts."""
        self.notes += parts.notes
        self.digests |= parts.digests
        self.features = self._features()
        tokenizer = load_or_train_tokenizer(self.folder, lambda: train_tokenizer(list(texts), self.config.tokenizer))
        self.perception = RnnPreprocessor(tokenizer, self.config.data.max_length, self.features)

    def _features(self) -> ElmoFeatures | None:
        """Return the frozen features, from the copy that the run's own folder has."""
        source = self.config.fine_tuning.features
        if not source:
            return None
        if not (self.folder / "run.json").exists():
            ElmoFeatures.load(source)  # what is no features' folder is refused before anything is copied
            copy_features(source, self.folder)
        features = ElmoFeatures.load(self.folder / FEATURES, self.config.training.device)
        self.digests["features"] = features.digest
        return features

    def account(self, read: RnnTexts, name: str) -> None:
        """Say what of texts is not read."""
        cut = int((read.truncated > 0).sum())
        if cut:
            longest, lost = self.perception.max_length, int(read.truncated.sum())
            self.notes.append(
                f"{cut:,} {name} texts are cut after {longest} tokens ({lost:,} tokens): see --max-length"
            )

    def learn(self, parts: Sequence[RnnTexts]) -> None:
        """Take all texts, the training ones first: how many tokens they have, and the settings that suit them."""
        train = parts[0]
        self._keep_features(parts)
        self.tokens_per_epoch = int(train.lengths.sum())
        self.preferred_settings: dict[str, float] = {
            "epochs": PASSES,
            "batch_tokens": max(1, BATCH_TEXTS * self.tokens_per_epoch // len(train)),
        }

    def _keep_features(self, parts: Sequence[RnnTexts]) -> None:
        """Make the features of all texts once, if they fit into the memory allowed."""
        if self.features is None:
            return
        size, allowed = sum(part.feature_bytes for part in parts), self.config.fine_tuning.feature_cache_mb
        what = f"features: {self.features.layers} frozen layers of {self.features.hidden_size}"
        if size > allowed << 20:
            self.notes.append(
                f"{what}, made anew in each batch: all would take {size >> 20:,} MB, and "
                f"--fine_tuning.feature_cache_mb allows {allowed:,}"
            )
            return
        began = time.perf_counter()
        for part in parts:
            part.cache_features()
        taken = time.perf_counter() - began
        self.notes.append(f"{what}, made once for all texts and kept ({size / 2**20:,.1f} MB, {taken:.1f} s)")

    def choose_config(self, config: Family) -> tuple[Family, str]:
        """Return the model for this data and why it was chosen."""
        preset, reason = choose_preset(
            self.config.preset,
            RNN_TEXT_PRESETS,
            amount=self.tokens_per_epoch,
            sizes=((SMALL_DATA, "tiny"),),
            largest="small",
            where=f"for {self.name}",
        )
        sizes = {} if preset is None else {"embedding_size": preset.embedding_size, "hidden_size": preset.hidden_size}
        beside = (0, 0) if self.features is None else (self.features.layers, self.features.hidden_size)
        known = {
            "vocab_size": self.perception.tokenizer.vocab_size,
            "num_feature_layers": beside[0],
            "feature_size": beside[1],
        }
        encoder: RnnTextConfig = config.encoder.override({**sizes, **known})
        return config.override({"num_labels": len(self.labels), "encoder": encoder.to_dict()}), reason

    # ---- what a run asks

    valid: Any  # what is held out, as the task reads it
    test: Any

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads."""
        return int(self.valid.rows.lengths.sum())

    def closing_seconds(self, evaluation: float) -> float:
        """Estimate the seconds of scoring validation and test texts at the end."""
        tokens = self.validation_tokens() + (0 if self.test is None else int(self.test.rows.lengths.sum()))
        return super().closing_seconds(evaluation) * tokens / max(1, self.validation_tokens())

    def model_lines(self, parameters: int) -> list[str]:
        """Say what the tokens and the model are."""
        return [
            f"tokens: {self.config.tokenizer.kind}, {self.perception.tokenizer.vocab_size:,} kinds",
            f"model: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()} ({self.reason})",
        ]

    reason: str

    def metadata(self, evaluator: Measuring) -> dict[str, Any]:
        """Return what must be known to read texts as in training."""
        made: dict[str, Any] = {"labels": list(self.labels), "max_length": self.config.data.max_length}
        if self.features is not None:
            made["features"] = {"folder": FEATURES, "digest": self.features.digest}
            made["features"] |= zip(("weights", "scale"), evaluator.model.encoder.mix_weights(), strict=True)
        return made

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        tokenizer = self.perception.tokenizer
        save_rnn_text(
            self.folder, self.model_config, weights, tokenizer=tokenizer, task=self.name, facts=facts, card=card
        )
