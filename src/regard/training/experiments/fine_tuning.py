"""What training an encoder for classification, tagging and question answering has in common: fine-tuned or fresh."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from regard.attention.trace import trace
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.hf.encoders import LABELLED_HEADS
from regard.checkpoint.model_files import folder_digest
from regard.checkpoint.source import EncoderSource
from regard.config.models import FRESH_ENCODER_PRESETS, HEAD_PREFIXES, BertConfig
from regard.config.task_runs import EncoderRun
from regard.errors import ConfigError
from regard.models.bert import Bert, initialize_bert
from regard.tasks.auxiliary_lm import AuxiliaryLMObjective
from regard.tasks.encoder_states import CachedStates
from regard.tasks.predictions import Predictions
from regard.tasks.windows import EncodedTexts, head_only_config
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_masked_tokenizer
from regard.training.evaluation import ModelEvaluator, Samples
from regard.training.experiments.base import Notify, subsample_indices
from regard.training.experiments.encoder_start import EncoderStart
from regard.training.experiments.presets import PresetTable
from regard.training.experiments.supervised import SplitT, SupervisedExperiment
from regard.training.snapshots import AttentionSnapshot, SnapshotText, choose_example
from regard.training.trainable import check_adapter_fits
from regard.training.vocabulary import EMBEDDINGS, load_or_train_tokenizer

# Defaults where the user sets none.
LEARNING_RATE_SCALE = 22.0  # over the squared hidden size
MAX_LEARNING_RATE = 3e-4
EVALUATIONS_PER_EPOCH = 2.0
# Defaults where only the head is trained.
HEAD_LEARNING_RATE = 2e-3
HEAD_EPOCHS = 20.0
HEAD_EVALUATIONS_PER_EPOCH = 0.5
# Defaults of a model that is trained from scratch.
FRESH_PRESETS = PresetTable(FRESH_ENCODER_PRESETS, ((20_000, "tiny"), (1_000_000, "small")), largest="base")
FRESH_RATE_SCALE = 0.128  # over the hidden size
MAX_FRESH_RATE = 2e-3
NUM_TIMED_TEXTS = 16  # whose encoding time gives an estimate for all texts


class EncoderExperiment(SupervisedExperiment[BertConfig, "EncoderEvaluator", SplitT]):
    """Train an encoder with a head for the task: a pretrained one, or a fresh one from scratch."""

    config: EncoderRun
    head: str
    problem_type = ""  # of classification
    fresh_epochs = 10.0  # by default, of a model that is trained from scratch

    # set by `prepare`
    start: EncoderStart
    special_tokens: SpecialTokens
    max_length: int

    # ---- data and initial weights

    def prepare(self) -> None:
        """Read and encode the data, and build the objective, on request with language modelling beside it."""
        super().prepare()
        lm_weight = self.config.fine_tuning.lm_weight
        if lm_weight:
            self.objective = AuxiliaryLMObjective(self.objective, lm_weight)

    def prepare_encoding(self, train: Any) -> None:
        """Load or build what the encoder starts from."""
        self.start = self.build_start(train)
        if self.start.digest:
            self.digests["start"] = self.start.digest
        self.model_config = self.start.config
        self.hidden_size = self.model_config.hidden_size
        self.reason = self.start.reason
        self.special_tokens = SpecialTokens(self.start.tokenizer)
        self.max_length = min(self.start.max_length, self.config.data.max_length)

    def build_start(self, train: Any) -> EncoderStart:
        """The encoder with a head for the labels: pretrained or fresh, as the architecture says."""
        if self.config.architecture == "transformer":
            return self._build_fresh_start(train)
        return self._build_pretrained_start(train)

    def load_tokenizer(self, train: Any) -> Tokenizer:
        """The tokenizer of a run that is resumed, or one that is trained on the texts of the training examples."""
        texts = self.training_texts(train)
        return load_or_train_tokenizer(self.folder, lambda: train_masked_tokenizer(texts, self.config.tokenizer))

    def _build_fresh_start(self, train: Any) -> EncoderStart:
        """A tokenizer of the training examples, and random weights of a model whose size suits them."""
        config = self.config
        tokenizer = self.load_tokenizer(train)
        num_tokens = sum(map(len, tokenizer.encode_batch(self.training_texts(train))))
        sizes, reason = FRESH_PRESETS.choose(config.preset, num_tokens, f"with --arch transformer for {self.name}")
        settings = {
            "head": self.head,
            "num_labels": len(self.labels) if self.head in LABELLED_HEADS else 0,
            "max_positions": config.max_positions,
        }
        return EncoderStart.from_scratch(
            config.transformer.override(settings | sizes),
            tokenizer,
            max_length=config.data.max_length,
            reason=reason,
            seed=config.training.seed,
        )

    def _build_pretrained_start(self, train: Any) -> EncoderStart:
        """The pretrained encoder, on request with new subwords or random weights."""
        config = self.config
        origin = "random weights, sizes" if config.fine_tuning.random_init else "weights"
        frozen = "; only the head is trained" if config.fine_tuning.freeze_encoder else ""
        start = EncoderStart.from_folder(self.load_pretrained(), f"{origin} from {config.pretrained}{frozen}")
        if config.fine_tuning.lm_weight:
            self._check_language_model(start.config)
        if config.tokenizer.extend:
            old = start.tokenizer
            tokenizer = load_or_train_tokenizer(
                self.folder, lambda: self.extend_vocabulary(old, self.training_texts(train))
            )
            start = start.with_vocabulary(tokenizer)
        if not config.is_distillation:
            start = start.with_delimiters()
        return start.with_random_weights(config.training.seed) if config.fine_tuning.random_init else start

    def _check_language_model(self, config: BertConfig) -> None:
        """Raise where the hidden states of the pretrained model do not predict the next token by its embedding."""
        name = self.config.pretrained
        option = f"--lm-weight ({self.config.fine_tuning.lm_weight:g})"
        if not config.causal:
            raise ConfigError(
                f"{option} is for causal models, which predict the next token: {name} reads in both directions; leave "
                "the option out, or start from a GPT"
            )
        if not config.tie_embeddings or config.embedding_size:
            raise ConfigError(f"{option} needs the token embedding as output projection, and {name} has another one")

    def load_pretrained(self) -> EncoderSource:
        """Load the pretrained encoder with the task's head."""
        config = self.config
        labels = self.labels if self.labels else None
        source = load_encoder(config.pretrained, head=self.head, labels=labels, seed=config.training.seed)
        check_adapter_fits(config.lora, config.pretrained, source.hf_config)
        return source

    def digest_model(self, name: str) -> str:
        """Digest the pretrained encoder, which is the same with any head."""
        return folder_digest(self.config.pretrained)

    def training_texts(self, train: Any) -> list[str]:
        """Texts of the training examples, which a tokenizer is trained on or its vocabulary extended by."""
        raise NotImplementedError

    def choose_training_settings(self) -> dict[str, float]:
        """Training settings that suit the task; other ones where only the head is trained."""
        settings = super().choose_training_settings()
        if self.config.architecture == "transformer":
            return settings | {
                "epochs": self.fresh_epochs,
                "base_learning_rate": min(MAX_FRESH_RATE, FRESH_RATE_SCALE / self.hidden_size),
            }
        if self.config.fine_tuning.freeze_encoder:
            return settings | {
                "epochs": HEAD_EPOCHS,
                "learning_rate": HEAD_LEARNING_RATE,
                "evaluations": HEAD_EVALUATIONS_PER_EPOCH,
            }
        return settings | {
            "learning_rate": min(MAX_LEARNING_RATE, LEARNING_RATE_SCALE / self.hidden_size**2),
            "evaluations": EVALUATIONS_PER_EPOCH,
        }

    def cache_states(self, rows: EncodedTexts, positions: Sequence[np.ndarray]) -> CachedStates | None:
        """Compute the hidden states that the head reads, once, where the encoder is frozen."""
        if not self.config.fine_tuning.freeze_encoder:
            return None
        num_states = sum(len(row_positions) for row_positions in positions)
        needed_mb = 2 * num_states * self.hidden_size >> 20
        allowed_mb = self.config.fine_tuning.feature_cache_mb
        if needed_mb > allowed_mb:
            raise ConfigError(
                f"the frozen states of all texts take {needed_mb:,} MB, and --fine_tuning.feature_cache_mb allows "
                f"{allowed_mb:,}: allow more, or train with fewer texts"
            )
        start = time.perf_counter()
        model = Bert(self.model_config).eval()
        model.load_state_dict(self.start.weights)
        model.pack()
        self._check_encoding_time(model, rows)
        cache = CachedStates(model, rows, positions)
        cache_mb = cache.states.numel() * cache.states.element_size() / 2**20
        seconds = time.perf_counter() - start
        self.notes.append(f"frozen encoder: hidden states computed once ({cache_mb:,.1f} MB, {seconds:.1f} s)")
        return cache

    def _check_encoding_time(self, model: Bert, rows: EncodedTexts) -> None:
        """Refuse a time budget that encoding all texts would use up, by the time of a sample of them."""
        budget_minutes = self.config.training.minutes
        sample = subsample_indices(len(rows), min(1.0, NUM_TIMED_TEXTS / len(rows)))
        if not budget_minutes or len(sample) == len(rows):
            return
        start = time.perf_counter()
        model.encode(rows.batch(sample))
        sample_seconds = time.perf_counter() - start
        minutes = sample_seconds * int(rows.lengths.sum()) / int(rows.lengths[sample].sum()) / 60
        if minutes > budget_minutes:
            raise ConfigError(
                f"the frozen states of {len(rows):,} texts take about {minutes:.1f} minutes, and --minutes allows "
                f"{budget_minutes:g} in all: allow at least {2 * minutes:.0f}, or give fewer texts"
            )

    # ---- interface of a run

    def describe_model(self, num_parameters: int) -> str:
        """Describe the model for the user, and the vocabulary where it is the run's own."""
        model = super().describe_model(num_parameters)
        if self.config.architecture != "transformer":
            return model
        return f"{self.describe_tokenizer()}\n{model}"

    def describe_tokenizer(self) -> str:
        """Describe the run's own vocabulary for the user."""
        return f"tokens: {self.config.tokenizer.kind}, vocabulary of {self.start.tokenizer.vocab_size:,}"

    @property
    def stored_beside_lora(self) -> tuple[str, ...]:
        """Weights that an adapter stores whole: those trained besides LoRA, and an embedding with a row for padding."""
        trained = self.trained_beside_lora
        return (*trained, *EMBEDDINGS) if self.start.has_new_tokens else trained

    def model(self) -> Bert:
        """Build the model to train, with its initial weights; only the head where the encoder is frozen."""
        if not self.config.fine_tuning.freeze_encoder:
            model = Bert(self.model_config)
            model.load_state_dict(self.start.weights)
            return model
        model = Bert(head_only_config(self.model_config))
        initialize_bert(model, self.config.training.seed)
        model.load_state_dict({**model.state_dict(), **_select_head(self.start.weights)})
        return model

    def merge_frozen(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Complete the trained weights by those of the encoder where it is frozen."""
        if not self.config.fine_tuning.freeze_encoder:
            return dict(weights)
        return {**self.start.weights, **_select_head(weights)}

    def evaluator(self, device: str) -> EncoderEvaluator:
        """Build the evaluator on validation data."""
        return EncoderEvaluator(self, device)

    def predict(self, model: Bert) -> tuple[Predictions, Samples]:
        """Predict the validation data; also return samples."""
        raise NotImplementedError

    def compute_final_metrics(self, model: Bert, notify: Notify) -> tuple[dict[str, float], dict[str, Any]]:
        """Compute the metrics of the final model, and further entries of task.json."""
        raise NotImplementedError

    def final_evaluation(self, evaluator: EncoderEvaluator, notify: Notify) -> tuple[dict[str, Any], dict[str, Any]]:
        """Evaluate the final model on validation and test data."""
        return self.compute_final_metrics(evaluator.model, notify)

    def metadata(self, evaluator: EncoderEvaluator) -> dict[str, Any]:
        """Entries of task.json that inference needs."""
        return {"max_length": self.max_length, **self.preprocessing_metadata()}

    def preprocessing_metadata(self) -> dict[str, Any]:
        """Entries of task.json that the task needs to encode texts as in training."""
        return {}

    def save(self, weights: Mapping[str, Tensor], metadata: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        save_encoder(
            self.folder,
            self.model_config,
            weights,
            tokenizer=self.start.tokenizer,
            task=self.name,
            metadata=metadata,
            card=card,
            labels=self.labels,
            problem_type=self.problem_type,
            preferred_type=self.start.model_type,
            original_config=self.start.hf_config,
        )

    def load_saved(self) -> EncoderSource:
        """Load the run's model."""
        return load_encoder(self.folder, task=self.name)


def _select_head(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if name.startswith(HEAD_PREFIXES)}


class EncoderEvaluator(ModelEvaluator[Bert]):
    """Evaluates an encoder and its head with the metrics of its experiment."""

    def __init__(self, experiment: EncoderExperiment[Any], device: str) -> None:
        super().__init__(Bert(experiment.model_config), device, experiment.scoring)
        self.experiment = experiment

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights to evaluate: all of them, or those of the head where the encoder is frozen."""
        super().load(self.experiment.merge_frozen(weights))
        self.model.pack()

    def predict(self) -> tuple[Predictions, Samples]:
        """Predict the experiment's validation data."""
        return self.experiment.predict(self.model)

    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Attention of one validation row."""
        rows: EncodedTexts = self.experiment.valid.rows
        tokenizer = self.experiment.start.tokenizer
        index = choose_example(rows.lengths)
        if index is None:
            return None
        with trace() as attention:
            self.model.encode(rows.batch(np.array([index])))
        ids = rows.rows[index].tolist()
        text = SnapshotText.from_ids(tokenizer, tokenizer.decode(ids).strip(), ids)
        return AttentionSnapshot.from_trace(attention, self.model.config, text)
