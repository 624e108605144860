"""Head study: what each head of a model attends to on data, and its importance.

Statistics of the attention are accumulated while the model reads. Then every head is ablated once, and the model is
scored on a sample as large as time allows; the same sample for all heads, so that they can be compared.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.attention.intervention import ablate
from regard.config.data import ReadConfig
from regard.data.batching import epoch_order
from regard.errors import UsageError, nearest
from regard.interpret.head_report import AlignmentHeadDict, HeadReport, HeadRow
from regard.interpret.head_statistics import CorpusStatistics, HeadStatistics
from regard.interpret.subjects import StudySubject, SubjectScore, TranslationSubject
from regard.pipeline.loaders import Pipeline
from regard.registry import TASKS, resolve
from regard.tasks.alignment import AlignmentHead, ReferenceLinks, align_head, alignment_error, rank_alignment_heads

Indices = NDArray[np.int64]
Head = tuple[str, int]  # site, index
AlignmentErrors = dict[tuple[str, int, int], float]  # by site, head and shift
Progress = Callable[[Iterable[list[Any]], int, str], Iterable[Any]]
MAX_EXAMPLES = 1000  # by default
FIRST_SAMPLE = 16  # examples of the first timing
EXAMPLES_PER_STEP = 32  # traced between two looks at the clock
ATTENTION_TIME = 0.2  # fraction of the time for statistics
ABLATION_TIME = 0.6  # fraction of the time for ablation; the rest is spare
ALIGNED_PAIRS = 200  # on which alignment heads are compared


@dataclass(frozen=True)
class HeadImportance:
    """What a metric loses without a head."""

    head: Head
    importance: float
    error: float | None  # standard error


def _no_progress(windows: Iterable[list[Any]], total: int, what: str) -> Iterator[Any]:
    return itertools.chain.from_iterable(windows)


def study_heads(
    subject: StudySubject,
    *,
    metric: str = "",
    sample: int = 0,
    minutes: float = 4.0,
    gold: Sequence[ReferenceLinks] | None = None,
    model: str = "",
    data: str = "",
    progress: Progress = _no_progress,
) -> HeadReport:
    """Measure statistics and importance of each head; the report has the most important head first.

    `metric` defaults to the first of the task, `sample` to as many examples as `minutes` allow, at most 1,000. `gold`
    has the reference alignment of every pair, for translation. `progress` passes on elements and shows their count.
    """
    start = time.monotonic()
    metric = metric or next(iter(subject.metrics))
    if metric not in subject.metrics:
        names = ", ".join(subject.metrics)
        raise UsageError(f"no metric {metric!r}{nearest(metric, subject.metrics)}: this task has {names}")
    if gold is not None and len(gold) != len(subject):
        raise UsageError(f"{len(gold):,} alignments for {len(subject):,} {subject.unit}: exactly one each is needed")
    seconds = float("inf") if sample else minutes * 60
    order = epoch_order(len(subject), seed=0, epoch=0, digest="0")
    sample_size = min(sample or MAX_EXAMPLES, len(subject))
    statistics, num_traced = _collect_statistics(subject, order[:sample_size], seconds * ATTENTION_TIME, progress)
    sites = subject.model.attention_sites()
    heads = [(site, head) for site, num_heads in sites.items() for head in range(num_heads)]
    if not sample:
        seconds_per_head = seconds * ABLATION_TIME / (len(heads) + 1)
        sample_size = _affordable_sample(subject, metric, order[:sample_size], seconds_per_head)
    indices = order[:sample_size]
    intact = subject.score(metric, indices)
    ablations = _ablate_heads(subject, metric, indices, intact, heads, start + seconds)
    importances = {importance.head: importance for importance in progress(ablations, len(heads), "heads")}
    alignment_heads, errors = _measure_alignment(subject, order[: min(ALIGNED_PAIRS, len(subject))], gold)
    rows = []
    for head in heads:
        head_statistics, name = statistics[head]
        row = _build_row(head, head_statistics, name, importances.get(head))
        rows.append(_add_alignment(row, alignment_heads.get(head), errors))
    rows.sort(key=lambda row: -(row.importance if row.importance is not None else -np.inf))
    return HeadReport(
        model=model,
        data=data,
        metric=metric,
        higher=subject.metrics[metric],
        whole=intact.value,
        unit=subject.unit,
        available=len(subject),
        num_examples=num_traced,
        sample=sample_size,
        seconds=time.monotonic() - start,
        rows=tuple(rows),
        alignment_head=_describe_alignment_head(alignment_heads, errors, heads),
    )


def _collect_statistics(
    subject: StudySubject, indices: Indices, seconds: float, progress: Progress
) -> tuple[dict[Head, tuple[HeadStatistics, str]], int]:
    """Statistics and names of all heads, and the number of examples that time allowed for."""
    statistics = CorpusStatistics(subject.model.attention_sites())

    def windows() -> Iterator[list[int]]:
        start = time.monotonic()
        for first in range(0, len(indices), EXAMPLES_PER_STEP):
            window = indices[first : first + EXAMPLES_PER_STEP]
            for site, weights, batch in itertools.chain.from_iterable(subject.attention(window)):
                statistics.add(site, weights, batch)
            yield window.tolist()
            if time.monotonic() - start > seconds:
                return

    num_traced = sum(1 for _ in progress(windows(), len(indices), f"{subject.unit} traced"))
    return statistics.heads(), num_traced


def _affordable_sample(subject: StudySubject, metric: str, indices: Indices, seconds: float) -> int:
    """Number of examples that can be scored in so many seconds, from timings of growing samples."""
    min_sample = min(FIRST_SAMPLE, len(indices))
    count = min_sample
    while True:
        start = time.monotonic()
        subject.score(metric, indices[:count])
        elapsed = max(time.monotonic() - start, 1e-6)
        affordable = int(count * seconds / elapsed)
        if count == len(indices) or 4 * elapsed > seconds:
            return max(min(affordable, len(indices)), min_sample)
        count = min(4 * count, len(indices))


def _ablate_heads(
    subject: StudySubject, metric: str, indices: Indices, intact: SubjectScore, heads: Sequence[Head], deadline: float
) -> Iterator[list[HeadImportance]]:
    """Yield the importance of each head, until time is up."""
    sign = -1.0 if subject.metrics[metric] else 1.0
    for site, head in heads:
        if time.monotonic() > deadline:
            return
        with ablate(f"{site}:{head}"):
            ablated = subject.score(metric, indices)
        error = None
        if intact.per_example is not None and ablated.per_example is not None and len(indices) > 1:
            differences = ablated.per_example - intact.per_example
            error = float(differences.std(ddof=1) * len(differences) ** 0.5)
        yield [HeadImportance((site, head), sign * (ablated.value - intact.value), error=error)]


def _measure_alignment(
    subject: StudySubject, indices: Indices, gold: Sequence[ReferenceLinks] | None
) -> tuple[dict[Head, AlignmentHead], AlignmentErrors]:
    """Each cross-attention head with its better shift, and the alignment errors of both where links are known."""
    if not isinstance(subject, TranslationSubject) or not subject.model.cross_attention_sites():
        return {}, {}
    source = [subject.pipeline.source.encode(subject.pairs.source[index]) for index in indices]
    target = [subject.pipeline.target.encode(subject.pairs.target[index]) for index in indices]
    weights = subject.cross_weights(indices)
    errors: AlignmentErrors = {}
    if gold is not None:
        references = [gold[index] for index in indices]
        for site, site_weights in weights.items():
            for head, shift in itertools.product(range(site_weights.shape[1]), (0, 1)):
                examples = zip(site_weights[:, head], source, target, strict=True)
                links = [
                    align_head(matrix, source_text, target_text, shift) for matrix, source_text, target_text in examples
                ]
                errors[site, head, shift] = alignment_error(links, references)
    ranked = rank_alignment_heads(weights, source, target)
    return {(candidate.site, candidate.head): candidate for candidate in ranked}, errors


def _describe_alignment_head(
    alignment_heads: dict[Head, AlignmentHead], errors: AlignmentErrors, heads: Sequence[Head]
) -> AlignmentHeadDict | None:
    """The best alignment head, and how it compares with the first head of the last layer."""
    if not alignment_heads:
        return None
    best = max(alignment_heads.values(), key=lambda candidate: candidate.score)
    description: AlignmentHeadDict = {
        "site": best.site,
        "head": best.head,
        "shift": best.shift,
        "score": round(best.score, 4),
    }
    if errors:
        last_site = [site for site, _ in heads if (site, 0) in alignment_heads][-1]
        description["error"] = round(errors[best.site, best.head, best.shift], 4)
        description["last_first"] = f"{last_site}:0"
        description["last_first_error"] = round(errors[last_site, 0, 0], 4)
    return description


def _build_row(head: Head, statistics: HeadStatistics, name: str, importance: HeadImportance | None) -> HeadRow:
    site, index = head
    row = HeadRow(site, index, name=name, numbers=dict(vars(statistics)))
    if importance is None:
        return row
    return replace(row, importance=importance.importance, error=importance.error)


def _add_alignment(row: HeadRow, alignment_head: AlignmentHead | None, errors: AlignmentErrors) -> HeadRow:
    if alignment_head is None:
        return row
    error = errors.get((alignment_head.site, alignment_head.head, alignment_head.shift))
    return replace(row, alignment=alignment_head.score, alignment_error=error)


def build_subject(pipeline: Pipeline, files: Sequence[str], config: ReadConfig | None = None) -> StudySubject:
    """Build the subject of a head study: a pipeline and files of its task; a model without attention is an error."""
    read = resolve(TASKS[pipeline.task_name].head_study)
    if read is None:
        raise UsageError("this model has no attention: there is no head to study")
    subject: StudySubject = read(pipeline, files, config or ReadConfig())
    if not subject.model.attention_sites():
        raise UsageError("this model has no attention: there is no head to study")
    return subject
