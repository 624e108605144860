"""What each head of a model does on data, and what is lost without it.

Numbers of heads are added up while the model reads; then every head is switched off once, and the model is measured on
a sample that is as large as time allows. The same sample is used for all heads, so that they can be compared.
"""

from __future__ import annotations

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
from regard.interpret.encoder_probes import EmbeddingProbe, LabelProbe, MaskedProbe, QuestionAnsweringProbe, TagProbe
from regard.interpret.head_statistics import CorpusStatistics, HeadStatistics
from regard.interpret.probes import CausalProbe, MemoryNetworkProbe, Probe, ProbeScore, TranslationProbe
from regard.pipeline.classification import ClassificationPipeline
from regard.pipeline.embedding import EmbeddingPipeline
from regard.pipeline.fill_mask import FillMaskPipeline
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.loaders import Pipeline
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.story_qa import StoryQAPipeline
from regard.pipeline.tagging import TokenClassificationPipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.alignment import AlignmentHead, align_head, alignment_error, rank_alignment_heads
from regard.view.head_report import HeadReport, HeadRow

Numbers = NDArray[np.int64]
Head = tuple[str, int]
Links = Sequence[tuple[int, int]]
MOST = 1000  # examples, where nobody says how many
FIRST = 16  # examples that time is first taken with
STEP = 32  # examples that are looked at between two looks at the clock
LOOKING, MEASURING = 0.2, 0.6  # shares of the time for numbers of heads and for switching them off; the rest is spare
ALIGNED = 200  # pairs that aligning heads are compared on
Each = Callable[[Iterable[list[Any]], int, str], Iterable[Any]]


@dataclass(frozen=True)
class HeadImportance:
    """What a metric loses without a head."""

    head: Head
    importance: float
    error: float | None


def _quietly(windows: Iterable[list[Any]], total: int, what: str) -> Iterator[Any]:
    return (item for window in windows for item in window)


def study_heads(
    probe: Probe,
    *,
    metric: str = "",
    sample: int = 0,
    minutes: float = 4.0,
    gold: Sequence[Links] | None = None,
    model: str = "",
    data: str = "",
    progress: Each = _quietly,
) -> HeadReport:
    """Return what each head does and what is lost without it, the most important first.

    Without a metric the task's usual one is taken; without a sample, as many as `minutes` allow, 1,000 at most.
    `gold` has the right word links of every pair, for translators. `each` passes things on and shows how far they are.
    """
    start = time.monotonic()
    metric = metric or next(iter(probe.metrics))
    if metric not in probe.metrics:
        names = ", ".join(probe.metrics)
        raise UsageError(f"no metric {metric!r}{nearest(metric, probe.metrics)}: this task has {names}")
    if gold is not None and len(gold) != len(probe):
        raise UsageError(f"{len(gold):,} alignments do not go with {len(probe):,} {probe.unit}: one each is needed")
    drawn = epoch_order(len(probe), seed=0, epoch=0, digest="0")
    most = min(sample or MOST, len(probe))
    statistics, looked = _looked(probe, drawn[:most], minutes * 60 * LOOKING if not sample else float("inf"), progress)
    sites = probe.model.attention_sites()
    heads = [(site, head) for site, count in sites.items() for head in range(count)]
    if not sample:
        most = _affordable(probe, metric, drawn[:most], minutes * 60 * MEASURING / (len(heads) + 1))
    chosen = drawn[:most]
    whole = probe.score(metric, chosen)
    deadline = start + minutes * 60 if not sample else float("inf")
    lost = {
        one.head: one for one in progress(_ablated(probe, metric, chosen, whole, heads, deadline), len(heads), "heads")
    }
    aligners, errors = _alignment(probe, drawn[: min(ALIGNED, len(probe))], gold)
    rows = [_row(head, *statistics[head], lost.get(head), aligners.get(head), errors) for head in heads]
    rows.sort(key=lambda row: -(row.importance if row.importance is not None else -np.inf))
    return HeadReport(
        model=model,
        data=data,
        metric=metric,
        higher=probe.metrics[metric],
        whole=whole.value,
        unit=probe.unit,
        available=len(probe),
        num_examples=looked,
        sample=most,
        seconds=time.monotonic() - start,
        rows=tuple(rows),
        aligner=_aligner(aligners, errors, heads),
    )


def _looked(
    probe: Probe, numbers: Numbers, seconds: float, each: Each
) -> tuple[dict[Head, tuple[HeadStatistics, str]], int]:
    """Return the numbers of all heads, and how many examples they are means over: as many as time allows."""
    made = CorpusStatistics(probe.model.attention_sites())

    def windows() -> Iterator[list[int]]:
        start = time.monotonic()
        for first in range(0, len(numbers), STEP):
            some = numbers[first : first + STEP]
            for seen in probe.attention(some):
                for site, weights, looking in seen:
                    made.add(site, weights, looking)
            yield some.tolist()
            if time.monotonic() - start > seconds:
                return

    looked = sum(1 for _ in each(windows(), len(numbers), f"{probe.unit} looked at"))
    return made.heads(), looked


def _affordable(probe: Probe, metric: str, numbers: Numbers, seconds: float) -> int:
    """Return how many of the examples can be measured in so many seconds: time is taken with ever more of them."""
    count = min(FIRST, len(numbers))
    while True:
        start = time.monotonic()
        probe.score(metric, numbers[:count])
        spent = max(time.monotonic() - start, 1e-6)
        fits = int(count * seconds / spent)
        if count == len(numbers) or 4 * spent > seconds:
            return max(min(fits, len(numbers)), min(FIRST, len(numbers)))
        count = min(4 * count, len(numbers))


def _ablated(
    probe: Probe, metric: str, numbers: Numbers, whole: ProbeScore, heads: Sequence[Head], deadline: float
) -> Iterator[list[HeadImportance]]:
    """Yield what is lost without each head, until time is up."""
    sign = 1.0 if not probe.metrics[metric] else -1.0
    for site, head in heads:
        if time.monotonic() > deadline:
            return
        with ablate(f"{site}:{head}"):
            found = probe.score(metric, numbers)
        error = None
        if whole.per_example is not None and found.per_example is not None and len(numbers) > 1:
            apart = found.per_example - whole.per_example
            error = float(apart.std(ddof=1) * len(apart) ** 0.5)
        yield [HeadImportance((site, head), sign * (found.value - whole.value), error)]


def _alignment(
    probe: Probe, numbers: Numbers, gold: Sequence[Links] | None
) -> tuple[dict[Head, AlignmentHead], dict[tuple[str, int, int], float]]:
    """Return each head that looks at a source in its better reading; and the errors of both, where links are known."""
    if not isinstance(probe, TranslationProbe) or not probe.model.cross_attention_sites():
        return {}, {}
    source, target = (
        [tokenizer.encode(texts[number]) for number in numbers]
        for tokenizer, texts in (
            (probe.pipeline.source, probe.pairs.source),
            (probe.pipeline.target, probe.pairs.target),
        )
    )
    weights = probe.cross_weights(numbers)
    errors: dict[tuple[str, int, int], float] = {}
    if gold is not None:
        wanted = [gold[number] for number in numbers]
        for site, every in weights.items():
            for head in range(every.shape[1]):
                for shift in (0, 1):
                    found = [align_head(*row, shift) for row in zip(every[:, head], source, target, strict=True)]
                    errors[site, head, shift] = alignment_error(found, wanted)
    return {(one.site, one.head): one for one in rank_alignment_heads(weights, source, target)}, errors


def _aligner(
    aligners: dict[Head, AlignmentHead], errors: dict[tuple[str, int, int], float], heads: Sequence[Head]
) -> dict[str, Any] | None:
    """Return the best aligning head, and how it compares with the last layer's first head."""
    if not aligners:
        return None
    best = max(aligners.values(), key=lambda one: one.score)
    made: dict[str, Any] = {"site": best.site, "head": best.head, "shift": best.shift, "score": round(best.score, 4)}
    if errors:
        last = [site for site, _ in heads if (site, 0) in aligners][-1]
        made["error"] = round(errors[best.site, best.head, best.shift], 4)
        made |= {"last_first": f"{last}:0", "last_first_error": round(errors[last, 0, 0], 4)}
    return made


def _row(
    head: Head,
    numbers: HeadStatistics,
    name: str,
    lost: HeadImportance | None,
    aligning: AlignmentHead | None,
    errors: dict[tuple[str, int, int], float],
) -> HeadRow:
    made = HeadRow(*head, name, dict(vars(numbers)))
    if lost is not None:
        made = replace(made, importance=lost.importance, error=lost.error)
    if aligning is not None:
        found = errors.get((aligning.site, aligning.head, aligning.shift))
        made = replace(made, alignment=aligning.score, alignment_error=found)
    return made


PROBES: dict[type[Any], Callable[[Any, Sequence[str], ReadConfig], Probe]] = {
    TranslationPipeline: TranslationProbe.read,
    ClassificationPipeline: LabelProbe.read,
    TokenClassificationPipeline: TagProbe.read,
    QuestionAnsweringPipeline: QuestionAnsweringProbe.read,
    EmbeddingPipeline: EmbeddingProbe.read,
    FillMaskPipeline: MaskedProbe.read,
    GenerationPipeline: CausalProbe.read,
    StoryQAPipeline: MemoryNetworkProbe.read,
}


def build_probe(pipeline: Pipeline, files: Sequence[str], config: ReadConfig | None = None) -> Probe:
    """Return the probe of a pipeline on files of its task; a model without attention is refused."""
    make = PROBES.get(type(pipeline))
    if make is None:
        raise UsageError("this model has no attention: there is no head to study")
    made = make(pipeline, files, config or ReadConfig())
    if not made.model.attention_sites():
        raise UsageError("this model has no attention: there is no head to study")
    return made
