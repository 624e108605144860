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
THREADS = 1  # of each training
PRETRAINING_MINUTES = 15.0  # of each model
PRECISION: Mapping[str, Any] = {"training.precision": "float32"}
TASK_SETTINGS: Mapping[str, Mapping[str, Any]] = {  # word counts are a row: no run needs a baseline of its own
    "classify": {**PRECISION, "fine_tuning.baseline": False},
    "tag": {**PRECISION, "fine_tuning.baseline": False},
    "story-qa": {},
}
AG_NEWS = "ag_news-6600"
AG_NEWS_TRAIN = 6600  # of the 7,600 articles; the rest are for testing
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
STORY_TASKS = {
    1: "one supporting fact",
    2: "two supporting facts",
    3: "three supporting facts",
    15: "deduction",
    16: "induction",
    19: "path finding",
}
HELD_OUT_STORY_TASKS = (1, 3, 15, 19)
HELD_OUT_NOTE = "Without the published test file, every tenth training story is held out as test data."
CONTRASTS = (  # pairs of rows that are tested wherever there are both, first minus second
    ("Transformer from scratch", "LSTM"),
    ("Transformer from scratch", "RNN"),
    ("Transformer from scratch", "RNN, mean"),
    ("Transformer from scratch", "RNN, attention"),
    ("RNN, attention", "RNN, mean"),
    ("BERT, fine-tuned", "BERT, frozen"),
    ("BERT, fine-tuned", "BERT features"),
    ("MiniLM, fine-tuned", "MiniLM, frozen"),
    ("MiniLM, fine-tuned", "MiniLM features"),
)
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
    title: str  # data set: what it asks for
    stage: str
    task: str
    dataset: str
    rows: Mapping[str, str]
    minutes: float  # of each training from scratch
    pretrained_minutes: float = 0.0  # of each that starts from, or reads, a pre-trained model
    seeds: tuple[int, ...] = (1, 2, 3)
    restarts: int = 1  # trainings of each run, of which the best by validation counts
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""  # on the data

    @property
    def short_title(self) -> str:
        """Name of the data set."""
        return self.title.partition(":")[0]

    @property
    def pretrainings(self) -> list[Pretraining]:
        """Models that are pre-trained for its rows."""
        return [row for row in PRETRAININGS if self.needs(row.name)]

    def needs(self, name: str) -> bool:
        """Whether a row starts from, or reads, a pre-trained model."""
        return any(f"{{{name}}}" in entry for entry in self.rows.values())

    @property
    def contrasts(self) -> list[tuple[str, str]]:
        """Pairs of its rows that are tested whatever their scores."""
        return [pair for pair in CONTRASTS if set(pair) <= self.rows.keys()]

    @property
    def untimed_models(self) -> list[str]:
        """Rows of models without a time limit, whose number of epochs ends their training."""
        architectures = {row: find_architecture(entry, self.task) for row, entry in self.rows.items()}
        return [row for row, kind in architectures.items() if not (kind.is_timed or kind.is_baseline)]

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

    def digest(self, threads: int = THREADS) -> str:
        """SHA-256 of all that decides the result: data, rows, settings, budget and pre-training, but no text."""
        decisive = {name: value for name, value in asdict(self).items() if name not in ("title", "note")}
        decisive |= {"task_settings": TASK_SETTINGS[self.task], "threads": threads}
        if self.dataset == AG_NEWS:
            decisive["training_articles"] = AG_NEWS_TRAIN
        if self.pretrainings:
            models = [asdict(pretraining) for pretraining in self.pretrainings]
            decisive["pretraining"] = {"models": models, "minutes": PRETRAINING_MINUTES, "texts": TEXTS, **PRECISION}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _classification(
    dataset: str, title: str, rows: Mapping[str, str], *, pretrained_minutes: float = 0.0, note: str = ""
) -> Comparison:
    return Comparison(
        f"classify-{dataset}",
        title,
        stage="classify",
        task="classify",
        dataset=dataset,
        rows=rows,
        minutes=0.5,
        pretrained_minutes=pretrained_minutes,
        note=note,
    )


def _stories(task: int) -> Comparison:
    return Comparison(
        f"stories-babi-{task}",
        f"bAbI {task}: {STORY_TASKS[task]}",
        stage="stories",
        task="story-qa",
        dataset=f"babi-{task}",
        rows=STORY_ROWS,
        minutes=1.0,
        seeds=(1,),
        restarts=STORY_RESTARTS,
        settings={"training.restarts": STORY_RESTARTS},
        note=HELD_OUT_NOTE if task in HELD_OUT_STORY_TASKS else "",
    )


COMPARISONS = (
    # frozen features take their time before training: ELMo reads SST-2 in about a minute
    _classification("trec", "TREC: types of questions", {**SCRATCH_ROWS, **PRETRAINED_ROWS}, pretrained_minutes=1.0),
    _classification(
        "sst2", "SST-2: sentiment of sentences", {**SCRATCH_ROWS, **PRETRAINED_ROWS}, pretrained_minutes=1.75
    ),
    _classification(
        AG_NEWS,
        "AG News: topics of articles",
        SCRATCH_ROWS,
        note="Only the published test file is used: 6,600 of its articles are training data, 1,000 test data.",
    ),
    Comparison(
        "tag-wnut17",
        "WNUT-17: emerging entities",
        stage="tag",
        task="tag",
        dataset="wnut17",
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
