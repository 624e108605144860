"""Fine-tuning: an encoder that can read learns a head for labels, tags or answers; what these tasks share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.attention.trace import trace
from regard.checkpoint.encoder_folder import LoadedEncoder, load_encoder, save_encoder
from regard.config.model import EncoderConfig
from regard.config.run import RunConfig
from regard.errors import ConfigError
from regard.models.encoder import Encoder, start_encoder
from regard.tasks.base import Task
from regard.tasks.encoding import Account, Encoded, KeptStates, head_alone
from regard.text.framing import Framing
from regard.training.job import Say
from regard.training.keeping import KeepingJob, Measured, ModelEvaluator, spread_indices
from regard.training.looked import Looked, Shown, shown_example
from regard.training.parts import Data, Parts

RATE, RATE_MOST = 22.0, 3e-4  # over the width squared: the highest rate, where the user sets none
FROZEN_RATE, FROZEN_PASSES = 2e-3, 20.0  # where nothing but the head learns
SAMPLE_TEXTS = 16  # by whose time that of all frozen states is estimated
HEAD = ("output", "pooler")  # how the names of a head's weights begin
EVALUATIONS = 2.0  # of a pass


class EncoderJob(KeepingJob[EncoderConfig, "EncoderEvaluator"]):
    """An encoder that starts from another's weights, and the head that it learns.

    A task reads its data, calls `begin` with it, and sets `task`.
    """

    head: str
    passes: float  # over the data, where the user sets no length
    batch_rows: int  # about so many rows in a batch, where the user sets no number of tokens
    goes_on = True
    task: Task

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.notes: list[str] = []
        self.digests: dict[str, str] = {}
        self.names: tuple[str, ...] = ()  # of labels or tags
        self.problem = ""

    def begin(self, parts: Parts[Data]) -> None:
        """Take the data, and open the folder to start from, with a head for its names."""
        config = self.config
        self.notes += parts.notes
        self.digests |= parts.digests
        self.start = self.opened()
        self.digests["start"] = self.start.digest
        self.model_config = self.start.config
        self.framing = Framing(self.start.tokenizer)
        self.longest = min(self.start.longest, config.data.max_length)
        self.width = self.model_config.width
        self.first = self.start.weights
        if config.classify.fresh:
            model = Encoder(self.model_config)
            start_encoder(model, config.training.seed)
            self.first = {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def read(self) -> Encoded:
        """Return the validation rows."""
        raise NotImplementedError

    def opened(self) -> LoadedEncoder:
        """Return the model that learning starts from, with the task's head."""
        labels = self.names if self.names else None
        return load_encoder(self.config.start_from, head=self.head, labels=labels, seed=self.config.training.seed)

    def learn(self, train: Encoded) -> None:
        """Take the training rows: how many tokens they have, and the settings that suit them."""
        self.rows = train
        self.tokens = int(train.lengths.sum())
        frozen = self.config.classify.frozen
        self.wishes: dict[str, float] = {
            "epochs": FROZEN_PASSES if frozen else self.passes,
            "batch_tokens": max(1, self.batch_rows * self.tokens // len(train)),
            "learning_rate": FROZEN_RATE if frozen else min(RATE_MOST, RATE / self.width**2),
            "evaluations": 0.5 if frozen else EVALUATIONS,
        }

    def kept_states(self, train: Encoded, places: Sequence[np.ndarray] | None = None) -> KeptStates | None:
        """Return the states that the head reads, where the encoder is frozen; made once."""
        if not self.config.classify.frozen:
            return None
        count = len(train) if places is None else sum(map(len, places))
        needed, given = 2 * count * self.width >> 20, self.config.classify.features_memory
        if needed > given:
            raise ConfigError(
                f"the frozen states of all texts take {needed:,} MB, and --classify.features_memory allows {given:,}: "
                "allow more, or learn with fewer texts"
            )
        began = time.perf_counter()
        model = Encoder(self.model_config).eval()
        model.load_state_dict(self.first)
        model.pack()
        self._check_time(model, train)
        made = KeptStates(model, train, places)
        size = made.states.numel() * made.states.element_size() / 2**20
        self.notes.append(f"frozen: states made once ({size:,.1f} MB, {time.perf_counter() - began:.1f} s)")
        return made

    def _check_time(self, model: Encoder, train: Encoded) -> None:
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

    def account(self, found: Account, name: str) -> None:
        """Say what became of texts that are too long."""
        if found.windowed or found.cut_texts:
            self.notes.append(f"{name}: {found.line()}")

    # ---- what a run asks

    @property
    def rates(self) -> Mapping[str, float] | None:
        """What the rate of each weight is multiplied with; nothing where all are the same."""
        decay, layers = self.config.classify.layer_decay, self.model_config.stack.layers
        if decay == 1 or self.config.classify.frozen:
            return None
        depth = {f"stack.blocks.{number}.": layers - number for number in range(layers)}

        def below(name: str) -> int:
            if name.startswith(HEAD):
                return 0
            return next((steps for start, steps in depth.items() if name.startswith(start)), layers + 1)

        return {name: decay ** below(name) for name in self.first}

    def model(self) -> Encoder:
        """Return the model that learns, with its first weights; of a frozen one, the head alone."""
        if not self.config.classify.frozen:
            model = Encoder(self.model_config)
            model.load_state_dict(self.first)
            return model
        model = Encoder(head_alone(self.model_config))
        start_encoder(model, self.config.training.seed)
        model.load_state_dict({**model.state_dict(), **_head(self.first)})
        return model

    def whole(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all weights of the model: a frozen one's encoder with the head that was learned."""
        return {**self.first, **_head(named)} if self.config.classify.frozen else dict(named)

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads."""
        return int(self.read().lengths.sum())

    def closing_seconds(self, evaluation: float) -> float:
        """Estimate the seconds of scoring validation and test data at the end."""
        test = getattr(self, "test", None)
        tokens = self.validation_tokens() + (0 if test is None else int(test.rows.lengths.sum()))
        return super().closing_seconds(evaluation) * tokens / max(1, self.validation_tokens())

    def evaluator(self, device: str) -> EncoderEvaluator:
        """Return what measures weights."""
        return EncoderEvaluator(self, device)

    def measured(self, model: Encoder) -> Measured:
        """Return measures on validation data, what ranks them, and samples."""
        raise NotImplementedError

    def concluded(self, model: Encoder, say: Say) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the measures of the model that is kept, and facts for its folder."""
        raise NotImplementedError

    def conclude(self, evaluator: EncoderEvaluator, say: Say) -> tuple[dict[str, Any], dict[str, Any]]:
        """Score the model that is kept."""
        return self.concluded(evaluator.model, say)

    def model_line(self, parameters: int) -> str:
        """Say what the model is and where it comes from."""
        what = "fresh weights, sizes" if self.config.classify.fresh else "weights"
        frozen = "; only the head learns" if self.config.classify.frozen else ""
        made = f"model: {parameters / 1e6:.2f} M parameters, {self.model_config.summary()}"
        return f"{made} ({what} from {self.config.start_from}{frozen})"

    def facts(self, evaluator: EncoderEvaluator) -> dict[str, Any]:
        """Return what must be known to use the model."""
        return {"max_length": self.longest, **self.reading()}

    def reading(self) -> dict[str, Any]:
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
            labels=self.names,
            problem=self.problem,
            kind=self.start.kind,
            fields=self.start.fields,
        )

    def kept(self) -> LoadedEncoder:
        """Return the run's model as it was written."""
        return load_encoder(self.folder, task=self.name)


def _head(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named.items() if name.startswith(HEAD)}


class EncoderEvaluator(ModelEvaluator[Encoder]):
    """Measures an encoder and its head as the job says; of a frozen one, the head alone is received."""

    def __init__(self, job: EncoderJob, device: str) -> None:
        super().__init__(Encoder(job.model_config), device)
        self.job = job

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        super().load(self.job.whole(named))
        self.model.pack()

    def measured(self) -> Measured:
        """Return what the job measures on validation data."""
        return self.job.measured(self.model)

    def looked(self) -> Looked | None:
        """Return where the encoder looks while it reads one validation row."""
        rows, tokenizer = self.job.read(), self.job.start.tokenizer
        number = shown_example(rows.lengths)
        if number is None:
            return None
        with trace() as seen:
            self.model.encode(rows.batch(np.array([number])))
        ids = rows.rows[number].tolist()
        return Looked.of(seen, Shown.of(tokenizer, tokenizer.decode(ids).strip(), ids))
