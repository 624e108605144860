"""What training RNN classifiers and taggers has in common: frozen features and model size."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

from regard.checkpoint.feature_dir import FEATURES, copy_features, describe_features
from regard.checkpoint.model_files import folder_digest
from regard.config.rnn_models import RNN_TEXT_PRESETS, RnnClassifierConfig, RnnTaggerConfig, RnnTextConfig
from regard.config.task_runs import EncoderRun
from regard.formatting import format_count
from regard.models.rnn_text import RnnTextModel
from regard.models.text_classifier import TextClassifierModel
from regard.tasks.feature_models import AnyFeatures, load_frozen_features
from regard.tasks.text_model import PreprocessedTexts, TextPreprocessor
from regard.training.device import device_of_rank
from regard.training.evaluation import Evaluator
from regard.training.experiments.base import Notify
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.presets import PresetTable
from regard.training.experiments.supervised import SplitT
from regard.training.experiments.text_model import TextModelExperiment

PRESETS = PresetTable(RNN_TEXT_PRESETS, ((10_000, "tiny"),), largest="small", sizes=("embedding_size", "hidden_size"))


class RnnTextEvaluator(Evaluator, Protocol):
    """Evaluator of an RNN classifier or tagger."""

    @property
    def model(self) -> RnnTextModel | TextClassifierModel: ...


ConfigT = TypeVar("ConfigT", RnnClassifierConfig, RnnTaggerConfig)
EvaluatorT = TypeVar("EvaluatorT", bound=RnnTextEvaluator)


class RnnTextExperiment(TextModelExperiment[ConfigT, EvaluatorT, SplitT]):
    """Train an RNN classifier or tagger from scratch."""

    config: EncoderRun

    # set by `prepare`
    features: AnyFeatures | None

    # ---- data and model size

    def prepare_encoding(self, train: Any) -> None:
        """Load the features, and train a tokenizer on the training texts."""
        self.features = self._load_features()
        self.preprocessor = TextPreprocessor(self.load_tokenizer(train), self.config.data.max_length, self.features)

    def _load_features(self) -> AnyFeatures | None:
        """Load the frozen features from their copy in the run directory, which a new run creates."""
        source = self.config.fine_tuning.features
        layers = self.config.fine_tuning.feature_layers
        if not source:
            return None
        if not (self.folder / "run.json").exists():
            load_frozen_features(source, layers)  # refuses other folders before anything is copied
            copy_features(source, self.folder)
        device = device_of_rank(self.config.training.device)
        features = load_frozen_features(self.folder / FEATURES, layers, device=device)
        self.digests["features"] = features.digest
        return features

    def digest_model(self, name: str) -> str:
        """Digest the model of the features at its source, not its copy in the run directory."""
        return folder_digest(self.config.fine_tuning.features)

    def encode_splits(self, splits: DataSplits[Any]) -> None:
        """Encode all splits, and cache their features."""
        super().encode_splits(splits)
        rows = [split.rows for split in (self.train, self.valid, self.test) if split is not None]
        self._report_windows(rows)
        self._cache_features(rows)

    def _report_windows(self, splits: Sequence[PreprocessedTexts]) -> None:
        """Note how many texts the features' model reads in windows."""
        if self.features is not None:
            report = self.features.count_windows([text for split in splits for text in split.texts])
            if report.windowed:
                self.notes.append(f"features: {report.format()}")

    def _cache_features(self, splits: Sequence[PreprocessedTexts]) -> None:
        """Compute the features of all texts once, if they fit into the memory allowed."""
        if self.features is None:
            return
        num_bytes = sum(split.feature_bytes for split in splits)
        allowed_mb = self.config.fine_tuning.feature_cache_mb
        features = (
            f"features: {format_count(self.features.num_layers, 'frozen layer')} of {self.features.hidden_size} "
            f"({self.features.family}, {self.features.selection.name}), {self.features.model.backend_name}"
        )
        if num_bytes > allowed_mb << 20:
            self.notes.append(
                f"{features}, computed anew in each batch: all would take {num_bytes >> 20:,} MB, and "
                f"--fine_tuning.feature_cache_mb allows {allowed_mb:,}"
            )
            return
        start = time.perf_counter()
        for split in splits:
            split.cache_features()
        seconds = time.perf_counter() - start
        self.notes.append(f"{features}, computed once for all texts ({num_bytes / 2**20:,.1f} MB, {seconds:.1f} s)")

    def base_config(self) -> ConfigT:
        """Model config of the run, before its sizes are chosen."""
        raise NotImplementedError

    def choose_config(self) -> tuple[ConfigT, str]:
        """Choose the model config for this data, and say why."""
        config = self.base_config()
        settings, reason = PRESETS.choose(self.config.preset, self.tokens_per_epoch, f"for {self.name}")
        settings["vocab_size"] = self.preprocessor.tokenizer.vocab_size
        settings["num_feature_layers"] = 0 if self.features is None else self.features.num_layers
        settings["feature_size"] = 0 if self.features is None else self.features.hidden_size
        encoder: RnnTextConfig = config.encoder.override(settings)
        return config.override({"num_labels": len(self.labels), "encoder": encoder.to_dict()}), reason

    # ---- interface of a run

    def metadata(self, evaluator: EvaluatorT) -> dict[str, Any]:
        """Entries of task.json that inference needs; with features, also the weights of their layers."""
        metadata = super().metadata(evaluator)
        if self.features is not None:
            metadata["features"] = self._feature_metadata(self.features, evaluator)
        return metadata

    def _feature_metadata(self, features: AnyFeatures, evaluator: EvaluatorT) -> dict[str, Any]:
        layer_weights, scale = evaluator.model.mix_weights()
        return {
            "folder": FEATURES,
            "digest": features.digest,
            "family": features.family,
            "selection": features.selection.name,
            "layers": list(features.selection.layers),
            "weights": layer_weights,
            "scale": scale,
        }

    def finalize(
        self,
        evaluator: EvaluatorT,
        average: Mapping[str, Tensor] | None,
        step: int,
        best: Sequence[float],
        notify: Notify,
    ) -> dict[str, Any]:
        """Choose the final weights, evaluate and save them; show the mix of layers that they learned."""
        metrics = super().finalize(evaluator, average, step, best, notify)
        if self.features is not None:
            notify(f"features: {describe_features(self._feature_metadata(self.features, evaluator))}")
        return metrics
