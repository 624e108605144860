"""Fine-tuning: an encoder that can read learns a head for labels, tags or answers; what these tasks share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.attention.trace import trace
from regard.checkpoint.encoder_dir import LoadedEncoder, load_encoder, save_encoder
from regard.config.models import BertConfig
from regard.config.runs import RunConfig
from regard.errors import ConfigError
from regard.models.bert import Bert, initialize_bert
from regard.tasks.base import Objective
from regard.tasks.windows import CachedStates, EncodedTexts, head_only_config
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.training.experiments.base import (
    BaseExperiment,
    Data,
    DataSplits,
    EvaluationResult,
    ModelEvaluator,
    Notify,
    spread_indices,
)
from regard.training.snapshots import AttentionSnapshot, SnapshotText, choose_example

RATE, RATE_MOST = 22.0, 3e-4  # over the width squared: the highest rate, where the user sets none
FROZEN_RATE, FROZEN_PASSES = 2e-3, 20.0  # where nothing but the head learns
SAMPLE_TEXTS = 16  # by whose time that of all frozen states is estimated
HEAD = ("output", "pooler")  # how the names of a head's weights begin
EVALUATIONS = 2.0  # of a pass


class FineTuningExperiment(BaseExperiment[BertConfig, "EncoderEvaluator"]):
    """An encoder that starts from another's weights, and the head that it learns.

    A task reads its data, calls `begin` with it, and sets `task`.
    """

    head: str
    passes: float  # over the data, where the user sets no length
    batch_rows: int  # about so many rows in a batch, where the user sets no number of tokens
    is_pretrained = True
    task: Objective

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.notes: list[str] = []
        self.digests: dict[str, str] = {}
        self.labels: tuple[str, ...] = ()  # of labels or tags
        self.problem_type = ""

    def prepare(self, splits: DataSplits[Data]) -> None:
        """Take the data, and open the folder to start from, with a head for its names."""
        config = self.config
        self.notes += splits.notes
        self.digests |= splits.digests
        self.start = self.load_pretrained()
        self.digests["start"] = self.start.digest
        self.model_config = self.start.config
        self.framing = SpecialTokens(self.start.tokenizer)
        self.max_length = min(self.start.max_length, config.data.max_length)
        self.hidden_size = self.model_config.hidden_size
        self.initial_weights = self.start.weights
        if config.fine_tuning.random_init:
            model = Bert(self.model_config)
            initialize_bert(model, config.training.seed)
            self.initial_weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def validation_rows(self) -> EncodedTexts:
        """Return the validation rows."""
        raise NotImplementedError

    def load_pretrained(self) -> LoadedEncoder:
        """Return the model that learning starts from, with the task's head."""
        labels = self.labels if self.labels else None
        return load_encoder(self.config.pretrained, head=self.head, labels=labels, seed=self.config.training.seed)

    def set_training_rows(self, rows: EncodedTexts) -> None:
        """Take the training rows: how many tokens they have, and the settings that suit them."""
        self.rows = rows
        self.tokens_per_epoch = int(rows.lengths.sum())
        frozen = self.config.fine_tuning.freeze_encoder
        self.preferred_settings: dict[str, float] = {
            "epochs": FROZEN_PASSES if frozen else self.passes,
            "batch_tokens": max(1, self.batch_rows * self.tokens_per_epoch // len(rows)),
            "learning_rate": FROZEN_RATE if frozen else min(RATE_MOST, RATE / self.hidden_size**2),
            "evaluations": 0.5 if frozen else EVALUATIONS,
        }

    def cache_states(self, rows: EncodedTexts, positions: Sequence[np.ndarray] | None = None) -> CachedStates | None:
        """Return the states that the head reads, where the encoder is frozen; made once."""
        if not self.config.fine_tuning.freeze_encoder:
            return None
        count = len(rows) if positions is None else sum(map(len, positions))
        needed, given = 2 * count * self.hidden_size >> 20, self.config.fine_tuning.feature_cache_mb
        if needed > given:
            raise ConfigError(
                f"the frozen states of all texts take {needed:,} MB, and --fine_tuning.feature_cache_mb allows {given:,}: "
                "allow more, or learn with fewer texts"
            )
        began = time.perf_counter()
        model = Bert(self.model_config).eval()
        model.load_state_dict(self.initial_weights)
        model.pack()
        self._check_time(model, rows)
        made = CachedStates(model, rows, positions)
        size = made.states.numel() * made.states.element_size() / 2**20
        self.notes.append(f"frozen: states made once ({size:,.1f} MB, {time.perf_counter() - began:.1f} s)")
        return made

    def _check_time(self, model: Bert, train: EncodedTexts) -> None:
        """Refuse a time budget that the frozen states of all texts would use up, by the time of a few of them."""
        minutes = self.config.training.minutes
        sample = spread_indices(len(train), min(1.0, SAMPLE_TEXTS / len(train)))
        if not minutes or len(sample) == len(train):
            return
        began = time.perf_counter()
        model.encode(train.batch(sample))
        taken = time.perf_counter() - began
        needed = taken * int(train.lengths.sum()) / int(train.lengths[sample].sum()) / 60
        if needed > minutes:
            raise ConfigError(
                f"the frozen states of {len(train):,} texts take about {needed:.1f} minutes, and --minutes allows "
                f"{minutes:g} in all: allow at least {2 * needed:.0f}, or give fewer texts"
            )

    def report_truncation(self, report: TruncationReport, split: str) -> None:
        """Say what became of texts that are too long."""
        if report.windowed or report.truncated_texts:
            self.notes.append(f"{split}: {report.format()}")

    # ---- what a run asks

    @property
    def learning_rate_scales(self) -> Mapping[str, float] | None:
        """What the rate of each weight is multiplied with; nothing where all are the same."""
        decay, layers = self.config.fine_tuning.layer_lr_decay, self.model_config.stack.num_layers
        if decay == 1 or self.config.fine_tuning.freeze_encoder:
            return None
        depth = {f"stack.blocks.{number}.": layers - number for number in range(layers)}

        def below(name: str) -> int:
            if name.startswith(HEAD):
                return 0
            return next((steps for start, steps in depth.items() if name.startswith(start)), layers + 1)

        return {name: decay ** below(name) for name in self.initial_weights}

    def model(self) -> Bert:
        """Return the model that learns, with its first weights; of a frozen one, the head alone."""
        if not self.config.fine_tuning.freeze_encoder:
            model = Bert(self.model_config)
            model.load_state_dict(self.initial_weights)
            return model
        model = Bert(head_only_config(self.model_config))
        initialize_bert(model, self.config.training.seed)
        model.load_state_dict({**model.state_dict(), **_head(self.initial_weights)})
        return model

    def merge_frozen(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all weights of the model: a frozen one's encoder with the head that was learned."""
        return {**self.initial_weights, **_head(weights)} if self.config.fine_tuning.freeze_encoder else dict(weights)

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads."""
        return int(self.validation_rows().lengths.sum())

    def closing_seconds(self, evaluation: float) -> float:
        """Estimate the seconds of scoring validation and test data at the end."""
        test = getattr(self, "test", None)
        tokens = self.validation_tokens() + (0 if test is None else int(test.rows.lengths.sum()))
        return super().closing_seconds(evaluation) * tokens / max(1, self.validation_tokens())

    def evaluator(self, device: str) -> EncoderEvaluator:
        """Return what measures weights."""
        return EncoderEvaluator(self, device)

    def compute_metrics(self, model: Bert) -> EvaluationResult:
        """Return measures on validation data, what ranks them, and samples."""
        raise NotImplementedError

    def concluded(self, model: Bert, notify: Notify) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the measures of the model that is kept, and facts for its folder."""
        raise NotImplementedError

    def final_evaluation(self, evaluator: EncoderEvaluator, notify: Notify) -> tuple[dict[str, Any], dict[str, Any]]:
        """Score the model that is kept."""
        return self.concluded(evaluator.model, notify)

    def model_line(self, parameters: int) -> str:
        """Say what the model is and where it comes from."""
        what = "fresh weights, sizes" if self.config.fine_tuning.random_init else "weights"
        frozen = "; only the head learns" if self.config.fine_tuning.freeze_encoder else ""
        made = f"model: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()}"
        return f"{made} ({what} from {self.config.pretrained}{frozen})"

    def metadata(self, evaluator: EncoderEvaluator) -> dict[str, Any]:
        """Return what must be known to use the model."""
        return {"max_length": self.max_length, **self.preprocessing_metadata()}

    def preprocessing_metadata(self) -> dict[str, Any]:
        """Return what a task must know beside it to read texts as in training."""
        return {}

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        save_encoder(
            self.folder,
            self.model_config,
            weights,
            tokenizer=self.start.tokenizer,
            task=self.name,
            facts=facts,
            card=card,
            labels=self.labels,
            problem=self.problem_type,
            kind=self.start.model_type,
            fields=self.start.hf_config,
        )

    def load_saved(self) -> LoadedEncoder:
        """Return the run's model as it was written."""
        return load_encoder(self.folder, task=self.name)


def _head(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named.items() if name.startswith(HEAD)}


class EncoderEvaluator(ModelEvaluator[Bert]):
    """Measures an encoder and its head as the job says; of a frozen one, the head alone is received."""

    def __init__(self, job: FineTuningExperiment, device: str) -> None:
        super().__init__(Bert(job.model_config), device)
        self.job = job

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        super().load(self.job.merge_frozen(named))
        self.model.pack()

    def compute_metrics(self) -> EvaluationResult:
        """Return what the job measures on validation data."""
        return self.job.compute_metrics(self.model)

    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Return where the encoder looks while it reads one validation row."""
        rows, tokenizer = self.job.validation_rows(), self.job.start.tokenizer
        number = choose_example(rows.lengths)
        if number is None:
            return None
        with trace() as seen:
            self.model.encode(rows.batch(np.array([number])))
        ids = rows.rows[number].tolist()
        return AttentionSnapshot.from_trace(seen, SnapshotText.of(tokenizer, tokenizer.decode(ids).strip(), ids))
