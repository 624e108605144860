"""JSON forms of the reports: what `to_dict` of a comparison, benchmark, demo or folder description returns."""

from __future__ import annotations

from typing import Any, TypedDict

from regard.training.verdict import VerdictDict


class PairedTestDict(TypedDict):
    """JSON form of a `PairedTest`."""

    difference: float  # of the two scores, in points
    low: float  # of its 95 % interval, by bootstrap over examples with the error of the seeds
    high: float
    p_value: float  # approximate randomization; adjusted for all pairs of models
    significant: bool


class LengthScoreDict(TypedDict):
    """JSON form of a `LengthScore`."""

    words: str  # range of the number of words
    examples: int
    score: float


class ComparedModelDict(TypedDict):
    """JSON form of a `ComparedModel`."""

    name: str
    summary: str
    parameters: int
    pretrained: bool | None  # whether it started from another model, or reads its features; null: unknown
    attention: bool  # whether it has attention that can be shown
    score: float  # metric that ranks the models, the mean over the seeds
    low: float  # of its 95 % interval, by bootstrap over examples with the error of the seeds
    high: float
    deviation: float | None  # standard deviation over the seeds; null for one seed
    scores: dict[str, list[float]]  # each metric on the test data, one value for each seed
    test: PairedTestDict | None  # this model minus the best one; null for the best one itself
    by_length: list[LengthScoreDict]
    retained_on_long: float | None  # score on long texts over that on short ones; null where there are few of either
    examples_per_second: float  # in evaluation
    training_rate: float | None  # per second, the median over the updates; null for a model that was not trained here
    training_unit: str  # what the rate counts: tokens, texts, words
    minutes: float | None  # of training, the mean over the seeds
    loss_curve: list[list[float]]  # minute, loss on validation data; of few evaluations, on training data
    metric_curve: list[list[float]]  # minute, metric on the same data
    prediction: str  # for the example


class AttentionVerdictDict(TypedDict):
    """JSON form of an `AttentionVerdict`."""

    attending: str  # the best model with attention, of those trained from scratch
    plain: str  # the best one without
    test: PairedTestDict  # the former minus the latter


class ComparisonReportDict(TypedDict):
    """JSON form of a `ComparisonReport`."""

    title: str
    task: str
    metric: str  # that ranks the models
    seeds: list[int]
    details: dict[str, Any]  # size of the test data, budget
    conclusion: str
    attention: AttentionVerdictDict | None  # null where there are not both kinds of models
    text: str  # example that is shown through every model
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
