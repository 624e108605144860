"""Quality of trained models: metrics on test data, by length and by position, and the time to reach a value."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from recipes.claims.measure import Measurement, Subject
from regard.checkpoint.run_dir import RunDirectory
from regard.config.data import ReadConfig
from regard.data.babi import read_stories
from regard.data.pairs import ParallelTexts, read_pairs
from regard.errors import ConfigError
from regard.interpret.subjects import TranslationSubject
from regard.metric_table import METRICS
from regard.pipeline.load import load, load_translator
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.scoring import translation_scores


def test_metric(subject: Subject, *, metric: str) -> Measurement:
    """A metric on the test data: of the run's own test where there is one, else of the loaded model."""
    metrics = RunDirectory(subject.folder).read_run()["result"]["metrics"]
    if f"test_{metric}" in metrics:
        return Measurement.from_value(metrics[f"test_{metric}"])
    model = load(subject.folder)
    if isinstance(model, StoryQAPipeline):
        scores, *_ = model.evaluate(read_stories(_test_files(subject)), strict=False)
        return Measurement.from_value(getattr(scores, metric))
    if not isinstance(model, TranslationPipeline):
        raise ConfigError(f"measure: {metric} is not measured on test data of {type(model).__name__}")
    return Measurement.from_value(_translation_metric(model, read_pairs(_test_files(subject), ReadConfig()), metric))


def validation_metric(subject: Subject, *, metric: str) -> Measurement:
    """The best value of a metric on validation data during training, and the curve by update."""
    evaluations = _evaluations(subject, metric)
    choose = max if METRICS[metric].larger_is_better else min
    best = choose(evaluations.values())
    return Measurement({"value": best}, curve=tuple((float(step), value) for step, value in evaluations.items()))


def minutes_to(subject: Subject, *, metric: str, bound: float) -> Measurement:
    """Minutes of training until the validation metric first reached a value; a run that never did counts in full.

    `has_reached` is 0 for such a run, whose minutes are a lower bound: a rule about such runs alone stays undecided.
    """
    directory = RunDirectory(subject.folder)
    rank = METRICS[metric].rank
    for step, value in _evaluations(subject, metric).items():
        if rank(value) >= rank(bound):
            return Measurement.from_value(step * directory.minutes_per_step(), has_reached=1.0)
    return Measurement.from_value(directory.read_run()["result"]["seconds"] / 60, has_reached=0.0)


def metric_by_length(subject: Subject, *, metric: str, groups: Sequence[int]) -> Measurement:
    """A metric of translation by the number of source words: up to each of these lengths, and beyond the last.

    The numbers are named after the longest source: `upto_10`, `upto_20`, `over_20`.
    """
    model = load_translator(subject.folder)
    pairs = read_pairs(_test_files(subject), ReadConfig())
    lengths = [len(source.split()) for source in pairs.source]
    bounds = [*groups, max(*lengths, *groups) + 1]
    numbers = {}
    curve = []
    low = 0
    for bound in bounds:
        indices = [index for index, length in enumerate(lengths) if low < length <= bound]
        if indices:
            name = f"upto_{bound}" if bound in groups else f"over_{low}"
            numbers[name] = _translation_metric(model, pairs.select(indices), metric)
            curve.append((fmean(lengths[index] for index in indices), numbers[name]))
        low = bound
    return Measurement(numbers, curve=tuple(curve))


def probability_by_position(subject: Subject, *, order: str) -> Measurement:
    """Mean probability of the target token that copies each source position, given the reference before it.

    `order` is that of the target: copy or reverse. `first` and `last` are the first and the last quarter of the source.
    """
    pairs = read_pairs(_test_files(subject), ReadConfig())
    translation = TranslationSubject(load_translator(subject.folder), pairs)
    by_position: dict[int, list[float]] = defaultdict(list)
    first: list[float] = []
    last: list[float] = []
    batch = translation.examples.batch(np.arange(len(translation)))
    for logprobs in translation.model.target_logprobs(batch.source, batch.target):
        probabilities = np.exp(logprobs[:-1]).tolist()  # without the end of the sequence
        if order == "reverse":
            probabilities.reverse()
        for position, probability in enumerate(probabilities):
            by_position[position].append(probability)
        quarter = math.ceil(len(probabilities) / 4)
        first += probabilities[:quarter]
        last += probabilities[-quarter:]
    curve = tuple((position + 1.0, fmean(values)) for position, values in sorted(by_position.items()))
    return Measurement({"first": fmean(first), "last": fmean(last)}, curve=curve)


def _translation_metric(model: TranslationPipeline, pairs: ParallelTexts, metric: str) -> float:
    translations = [str(translation) for translation in model(list(pairs.source), split=False)]
    return float(translation_scores(translations, pairs.target)[metric])


def _test_files(subject: Subject) -> tuple[str, ...]:
    assert subject.data is not None
    return subject.data.test


def _evaluations(subject: Subject, metric: str) -> Mapping[int, float]:
    """Values of a validation metric by update."""
    log: list[dict[str, Any]] = RunDirectory(subject.folder).read_log()
    return {event["step"]: float(event[metric]) for event in log if event["event"] == "evaluate" and metric in event}
