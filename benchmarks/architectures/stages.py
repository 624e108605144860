"""What is compared: the pre-trained models, and for each data set the architectures, their budget and their seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from regard.config.architecture import find_architecture

STAGE_MINUTES = 60.0  # that each stage may take on two cores
JOBS = 2  # parts of a stage that are trained side by side, each on one thread
PRETRAINING_MINUTES = 15.0  # of each model
SCRATCH_ROWS = {  # row of the table → entry of `regard compare --arch`
    "word counts": "counts",
    "RNN, mean": "rnn:mean",
    "RNN, attention": "rnn:attention",
    "Transformer from scratch": "transformer",
}
TAGGER_ROWS = {"word counts": "counts", "RNN": "rnn", "Transformer from scratch": "transformer"}
PRETRAINED_ROWS = {  # names in braces stand for the folders of pre-trained models
    "ELMo features": "features:{elmo}",
    "BERT features": "features:{bert}",
    "BERT, frozen": "frozen:{bert}",
    "BERT, fine-tuned": "tuned:{bert}",
    "GPT, fine-tuned": "tuned:{gpt}",
    "MiniLM features": "features:{minilm}",
    "MiniLM, frozen": "frozen:{minilm}",
    "MiniLM, fine-tuned": "tuned:{minilm}",
}
STORY_ROWS = {
    "most frequent answer": "counts",
    "memory network": "memory-network",
    "LSTM": "rnn",
    "Transformer from scratch": "transformer",
}
STORY_TASKS = (1, 2, 3, 15, 16, 19)
STORY_RESTARTS = 3
MINILM = "minilm"
TEXTS = ("gutenberg", "wikitext2")  # that ELMo, BERT and GPT are pre-trained on


@dataclass(frozen=True)
class Pretraining:
    """A model that is pre-trained, and its settings."""

    name: str
    task: str
    settings: Mapping[str, Any]


PRETRAININGS = (
    Pretraining("elmo", "elmo", {"preset": "small"}),
    Pretraining("bert", "masked-lm", {"preset": "mini"}),
    Pretraining("gpt", "causal-lm", {"preset": "small"}),
)


@dataclass(frozen=True)
class Comparison:
    """Architectures on one data set, all with the same settings, budget and seeds."""

    name: str
    stage: str
    task: str
    dataset: str
    rows: Mapping[str, str]
    minutes: float  # of each training from scratch
    pretrained_minutes: float = 0.0  # of each that starts from, or reads, a pre-trained model
    seeds: tuple[int, ...] = (1, 2, 3)
    restarts: int = 1  # trainings of each run, of which the best by validation counts
    settings: Mapping[str, Any] = field(default_factory=dict)

    def row_minutes(self, row: str) -> float:
        """Time limit of each training of a row; 0 where there is none."""
        architecture = find_architecture(self.rows[row], self.task)
        if not architecture.is_timed:
            return 0.0
        return self.pretrained_minutes if architecture.is_pretrained else self.minutes

    def run_minutes(self, row: str) -> float:
        """Time limit of each run of a row, all of its restarts together; 0 where there is none."""
        return self.row_minutes(row) * self.restarts

    @property
    def num_runs(self) -> int:
        """Number of trainings that have a time limit."""
        num_rows = sum(self.row_minutes(row) > 0 for row in self.rows)
        return num_rows * len(self.seeds) * self.restarts

    @property
    def total_minutes(self) -> float:
        """Sum of the time limits."""
        return sum(map(self.run_minutes, self.rows)) * len(self.seeds)

    def digest(self) -> str:
        """SHA-256 of all that decides the result."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def _classification(dataset: str, rows: Mapping[str, str], pretrained_minutes: float = 0.0) -> Comparison:
    return Comparison(
        f"classify-{dataset}",
        "classify",
        "classify",
        dataset,
        rows=rows,
        minutes=0.5,
        pretrained_minutes=pretrained_minutes,
    )


def _stories(task: int) -> Comparison:
    return Comparison(
        f"stories-babi-{task}",
        "stories",
        "story-qa",
        f"babi-{task}",
        rows=STORY_ROWS,
        minutes=1.0,
        seeds=(1,),
        restarts=STORY_RESTARTS,
        settings={"training.restarts": STORY_RESTARTS},
    )


COMPARISONS = (
    # frozen features take their time before training: ELMo reads SST-2 in about a minute
    _classification("trec", {**SCRATCH_ROWS, **PRETRAINED_ROWS}, pretrained_minutes=1.0),
    _classification("sst2", {**SCRATCH_ROWS, **PRETRAINED_ROWS}, pretrained_minutes=1.75),
    _classification("ag_news-6600", SCRATCH_ROWS),
    Comparison(
        "tag-wnut17",
        "tag",
        "tag",
        "wnut17",
        rows={**TAGGER_ROWS, **PRETRAINED_ROWS},
        minutes=1.0,
        pretrained_minutes=1.5,
    ),
    *map(_stories, STORY_TASKS),
)
STAGES = ("pretrain", *dict.fromkeys(comparison.stage for comparison in COMPARISONS))


def stage_parts(stage: str) -> dict[str, float]:
    """Minutes of training of each part of a stage: of its models, or of its comparisons.

    >>> stage_parts("pretrain")
    {'elmo': 15.0, 'bert': 15.0, 'gpt': 15.0}
    """
    if stage == "pretrain":
        return {pretraining.name: PRETRAINING_MINUTES for pretraining in PRETRAININGS}
    return {comparison.name: comparison.total_minutes for comparison in COMPARISONS if comparison.stage == stage}


def stage_minutes(stage: str, jobs: int = JOBS) -> float:
    """Minutes of training of a stage, from the limits of its runs; the longest parts begin first.

    >>> stage_minutes("pretrain"), stage_minutes("pretrain", jobs=1)
    (30.0, 45.0)
    """
    minutes = [0.0] * jobs
    for part_minutes in sorted(stage_parts(stage).values(), reverse=True):
        minutes[minutes.index(min(minutes))] += part_minutes
    return max(minutes)
