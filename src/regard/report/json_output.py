"""JSON forms of the reports: what `to_dict` of a comparison, benchmark, demo or folder description returns."""

from __future__ import annotations

from typing import Any, TypedDict

from regard.tasks.metrics import LengthGroup
from regard.training.verdict import VerdictDict


class ComparedModelDict(TypedDict):
    """JSON form of a `ComparedModel`."""

    name: str
    summary: str
    parameters: int
    scores: dict[str, Any]  # metrics on the test data by name, with their signatures
    low: float  # lower-cased BLEU of the 95 % interval, by bootstrap
    high: float
    p_value: float | None  # of the hypothesis that the best model is no better; null for the best model
    by_length: list[LengthGroup]
    sentences_per_second: float  # decoding
    tokens_per_second: float | None  # training, in target tokens; null for a model that was not trained here
    minutes: float | None  # of training
    losses: list[list[float]]  # update, validation loss
    prediction: str  # translation of the example sentence
    bleu_short: float | None  # on short sources; null where the test data has no short or no long ones
    bleu_long: float | None
    retained_on_long: float | None  # BLEU on long sources as a fraction of BLEU on short ones


class ComparisonReportDict(TypedDict):
    """JSON form of a `ComparisonReport`."""

    title: str
    details: dict[str, Any]  # size of the test data
    conclusion: str
    sentence: str  # example that every model translates
    reference: str
    models: list[ComparedModelDict]


class SetupResultDict(TypedDict):
    """JSON form of a `SetupResult`: one way to run the model."""

    backend: str
    precision: str
    threads: int
    throughput: float  # units per second: the median of the rounds
    throughput_range: list[float]  # of the slowest and of the fastest round
    latency_p50_ms: float  # of single texts
    latency_p95_ms: float


class ModelBenchmarkDict(TypedDict):
    """JSON form of a `ModelBenchmark`."""

    model: str
    unit: str  # of throughput
    texts: int
    rounds: int
    results: list[SetupResultDict]
    skipped: list[str]  # setups that the model or the machine cannot run, with the reason
    processor: str
    cores: int


class LanguageCountDict(TypedDict):
    """Translated test dates of one language."""

    correct: int
    total: int


class DemoExampleDict(TypedDict):
    """The date whose attention is shown."""

    source: str
    translation: str
    correct: bool


class DemoSampleDict(TypedDict):
    """A test date and its translation."""

    source: str
    translation: str


class DemoResultDict(TypedDict):
    """JSON form of a `DemoResult`."""

    folder: str  # of the model
    page: str
    exact_match: float  # percent of the test dates
    goal_reached: bool
    verdict: VerdictDict | None  # on the training run
    example: DemoExampleDict
    by_language: dict[str, LanguageCountDict]
    samples: list[DemoSampleDict]


class RunStateDict(TypedDict):
    """State of a run."""

    finished: bool
    step: int  # of the last report
    unit: str  # of `step`
    checkpoints: list[int]
    config: dict[str, Any] | None  # every setting
    throughput: str | None  # threads and precision, and how they were chosen


class FolderInfoDict(TypedDict):
    """JSON form of a `FolderInfo`."""

    folder: str
    kind: str  # run or model
    model: dict[str, Any] | None  # config of the family; null for a run that has not written its model yet
    parameters: int
    tokenizers: dict[str, int]  # file → number of tokens
    task: dict[str, Any]  # content of task.json
    run: RunStateDict | None  # null for a model
    files: dict[str, int]  # bytes
