"""Inspect parallel texts before training (sizes, repetitions, overlaps, suspicious pairs), and clean them."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from regard.data.pairs import ParallelTexts
from regard.errors import ConfigError

QUANTILES = (0, 5, 25, 50, 75, 95, 99, 100)
SUSPICIOUS_RATIO = 3.0  # a length ratio is suspicious when it is off the typical one by this factor
MAX_SHOWN = 5  # examples of each kind
MANY_REPEATED = 0.1  # fraction of repeated source texts that deserves a warning
REMOVAL_REASONS = ("too short", "too long", "length ratio", "identical sides", "in another split", "repeated")


@dataclass(frozen=True)
class SideReport:
    """Statistics of one side of a split."""

    words: dict[int, int]  # quantile in percent → words of a text
    characters: dict[int, int]
    running_words: int
    distinct_words: int
    scripts: dict[str, float]  # fraction of the letters
    longest: list[tuple[int, int]]  # line and characters of the longest texts
    composed: int  # texts beyond ASCII in normal form C
    decomposed: int  # texts in another form


@dataclass(frozen=True)
class SplitReport:
    """Statistics of one split."""

    pairs: int
    num_read: int
    rejected: int
    digest: str
    source: SideReport
    target: SideReport
    repeated_pairs: int  # beyond the first of each
    repeated_sources: int
    suspicious: dict[str, list[int]]  # kind → lines


@dataclass(frozen=True)
class Overlap:
    """How much of another split is in the training split, too."""

    pairs: int
    sources: int
    lines: list[int]  # of the other split, the first few


class SuspiciousDict(TypedDict):
    """Suspicious pairs of one kind."""

    count: int
    lines: list[int]  # of the first few


class SplitReportDict(TypedDict):
    """JSON form of a `SplitReport`."""

    pairs: int
    num_read: int
    rejected: int
    digest: str
    source: SideReport
    target: SideReport
    repeated_pairs: int  # beyond the first of each
    repeated_sources: int
    suspicious: dict[str, SuspiciousDict]  # kind → pairs


class CorpusReportDict(TypedDict):
    """JSON form of a `CorpusReport`."""

    splits: dict[str, SplitReportDict]  # by split
    overlaps: dict[str, Overlap]  # of another split with the training split
    warnings: list[str]


@dataclass(frozen=True)
class CorpusReport:
    """Result of `check_pairs`."""

    splits: dict[str, SplitReport]
    overlaps: dict[str, Overlap]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; suspicious lines are counted and shortened to the first few."""
        report = dataclasses.asdict(self)
        for split in report["splits"].values():
            split["suspicious"] = {
                kind: {"count": len(lines), "lines": lines[:MAX_SHOWN]} for kind, lines in split["suspicious"].items()
            }
        return report

    def format(self) -> str:
        """The report as text."""
        paragraphs = [_format_split(name, split) for name, split in self.splits.items()]
        for name, overlap in self.overlaps.items():
            lines = f" (lines {_format_lines(overlap.lines, overlap.sources)})" if overlap.lines else ""
            paragraphs.append(
                f"overlap of train and {name}: {overlap.pairs:,} pairs, {overlap.sources:,} source texts{lines}"
            )
        paragraphs.extend(f"warning: {warning}" for warning in self.warnings)
        return "\n".join(paragraphs)


def check_pairs(train: ParallelTexts, others: Mapping[str, ParallelTexts] | None = None) -> CorpusReport:
    """Inspect a training split, and its overlap with other splits.

    >>> train = ParallelTexts.from_texts(["one dog", "two dogs", "one dog"], ["ein Hund", "zwei Hunde", "ein Hund"])
    >>> report = check_pairs(train, {"test": ParallelTexts.from_texts(["two dogs"], ["zwei Hunde"])})
    >>> report.splits["train"].repeated_pairs, report.overlaps["test"].pairs
    (1, 1)
    """
    others = others or {}
    splits = {name: _report_split(pairs) for name, pairs in {"train": train, **others}.items()}
    overlaps = {name: _find_overlap(train, pairs) for name, pairs in others.items()}
    return CorpusReport(splits, overlaps, warnings=list(_iter_warnings(splits, overlaps)))


@dataclass(frozen=True)
class CleaningResult:
    """The pairs that `clean_pairs` leaves, and how many it removes for which reason."""

    pairs: ParallelTexts
    removed: dict[str, int]


def clean_pairs(
    pairs: ParallelTexts,
    *,
    min_words: int = 1,
    max_words: int = 250,
    ratio: float = 0.0,
    deduplicate: bool = True,
    drop_identical: bool = False,
    exclude: Sequence[ParallelTexts] = (),
) -> CleaningResult:
    """Remove pairs that break a rule; each counts for the first rule that it breaks. The order stays.

    `ratio` is the factor by which a pair's length ratio may differ from the typical one (0: any); `exclude` are
    splits, such as the test split, whose source texts must not remain.

    >>> pairs = ParallelTexts.from_texts(["a b", "a b", "c", "d d d"], ["x y", "x y", "c", "z"])
    >>> cleaned = clean_pairs(pairs, max_words=2, drop_identical=True)
    >>> cleaned.pairs.source, cleaned.removed
    (['a b'], {'too long': 1, 'identical sides': 1, 'repeated': 1})
    """
    if ratio and ratio <= 1:
        raise ConfigError(f"ratio ({ratio}) must be greater than 1, or 0 for any")
    if min_words > max_words:
        raise ConfigError(f"min_words ({min_words}) must not exceed max_words ({max_words})")
    excluded_sources = {_normalize(text) for split in exclude for text in split.source}
    deviations = np.exp(np.abs(_log_ratio_deviations(pairs))) if ratio else np.zeros(len(pairs))
    visited: set[tuple[str, str]] = set()
    removed: Counter[str] = Counter()
    remaining = []
    for index, (source, target) in enumerate(zip(pairs.source, pairs.target, strict=True)):
        word_counts = (len(source.split()), len(target.split()))
        pair = (_normalize(source), _normalize(target))
        broken_rules = (
            min(word_counts) < min_words,
            max(word_counts) > max_words,
            ratio and deviations[index] > ratio,
            drop_identical and pair[0] == pair[1],
            pair[0] in excluded_sources,
            deduplicate and pair in visited,
        )
        if any(broken_rules):
            reasons = [reason for reason, is_broken in zip(REMOVAL_REASONS, broken_rules, strict=True) if is_broken]
            removed[reasons[0]] += 1
        else:
            visited.add(pair)
            remaining.append(index)
    counts = {reason: removed[reason] for reason in REMOVAL_REASONS if removed[reason]}
    return CleaningResult(pairs.select(remaining), counts)


def _normalize(text: str) -> str:
    """The text in normal form C with single spaces, so that equal texts compare equal."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _log_ratio_deviations(pairs: ParallelTexts) -> NDArray[np.float64]:
    """Deviation of each pair's log length ratio from the median; smoothed, so that short texts deviate less."""
    lengths = np.array([[len(source), len(target)] for source, target in zip(pairs.source, pairs.target, strict=True)])
    if not len(lengths):
        return np.zeros(0)
    log_ratios = np.log((lengths[:, 1] + 5) / (lengths[:, 0] + 5))
    return np.asarray(log_ratios - np.median(log_ratios))


def _report_split(pairs: ParallelTexts) -> SplitReport:
    normalized = [
        (_normalize(source), _normalize(target)) for source, target in zip(pairs.source, pairs.target, strict=True)
    ]
    return SplitReport(
        pairs=len(pairs),
        num_read=pairs.num_read,
        rejected=pairs.num_rejected,
        digest=pairs.digest,
        source=_report_side(pairs.source, pairs.locations),
        target=_report_side(pairs.target, pairs.locations),
        repeated_pairs=len(normalized) - len(set(normalized)),
        repeated_sources=len(normalized) - len({source for source, _ in normalized}),
        suspicious=_find_suspicious(pairs, normalized),
    )


def _find_suspicious(pairs: ParallelTexts, normalized: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    """Lines of suspicious pairs, by kind."""
    is_off_ratio = np.abs(_log_ratio_deviations(pairs)) > np.log(SUSPICIOUS_RATIO)
    is_suspicious: dict[str, Sequence[bool]] = {
        "length ratio": is_off_ratio.tolist(),
        "identical sides": [source == target for source, target in normalized],
        "few letters": [_has_few_letters(source) or _has_few_letters(target) for source, target in normalized],
    }
    lines_by_kind = {
        kind: [int(line) for line, is_listed in zip(pairs.locations, flags, strict=True) if is_listed]
        for kind, flags in is_suspicious.items()
    }
    return {kind: lines for kind, lines in lines_by_kind.items() if lines}


def _has_few_letters(text: str) -> bool:
    """Whether most of a text is digits, punctuation and other signs."""
    visible = text.replace(" ", "")
    num_letters = sum(character.isalpha() or unicodedata.combining(character) > 0 for character in visible)
    return 2 * num_letters < len(visible)


def _report_side(texts: Sequence[str], locations: NDArray[np.int64]) -> SideReport:
    characters = [len(text) for text in texts]
    words: Counter[str] = Counter(word for text in texts for word in text.split())
    non_ascii = [text for text in texts if not text.isascii()]
    composed = sum(unicodedata.is_normalized("NFC", text) for text in non_ascii)
    longest = sorted(range(len(texts)), key=lambda index: (-characters[index], index))[:MAX_SHOWN]
    return SideReport(
        words=_quantiles([len(text.split()) for text in texts]),
        characters=_quantiles(characters),
        running_words=words.total(),
        distinct_words=len(words),
        scripts=_script_fractions(texts),
        longest=[(int(locations[index]), characters[index]) for index in longest],
        composed=composed,
        decomposed=len(non_ascii) - composed,
    )


def _quantiles(counts: Sequence[int]) -> dict[int, int]:
    if not counts:
        return {}
    quantiles = np.percentile(counts, QUANTILES, method="inverted_cdf")
    return {percent: int(quantile) for percent, quantile in zip(QUANTILES, quantiles, strict=True)}


@cache
def _script(character: str) -> str:
    """Writing system of a letter: the first word of its Unicode name; empty for other characters."""
    if not character.isalpha():
        return ""
    return unicodedata.name(character, "unnamed").split()[0].split("-")[0].title()


def _script_fractions(texts: Iterable[str]) -> dict[str, float]:
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    scripts: Counter[str] = Counter()
    for character, count in characters.items():
        scripts[_script(character)] += count
    del scripts[""]
    return {script: count / scripts.total() for script, count in scripts.most_common()}


def _find_overlap(train: ParallelTexts, other: ParallelTexts) -> Overlap:
    train_sources = {_normalize(source) for source in train.source}
    train_pairs = {
        (_normalize(source), _normalize(target)) for source, target in zip(train.source, train.target, strict=True)
    }
    shared = [index for index, source in enumerate(other.source) if _normalize(source) in train_sources]
    num_pairs = sum(
        (_normalize(other.source[index]), _normalize(other.target[index])) in train_pairs for index in shared
    )
    lines = [int(other.locations[index]) for index in shared[:MAX_SHOWN]]
    return Overlap(pairs=num_pairs, sources=len(shared), lines=lines)


def _iter_warnings(splits: Mapping[str, SplitReport], overlaps: Mapping[str, Overlap]) -> Iterator[str]:
    for name, split in splits.items():
        for side_name, side in (("source", split.source), ("target", split.target)):
            if side.decomposed and side.composed:
                yield (
                    f"{name}: the {side_name} side mixes normal forms ({side.composed:,} texts composed, "
                    f"{side.decomposed:,} not): the tokenizer unifies them unless normalization is none"
                )
        if split.repeated_sources > MANY_REPEATED * split.pairs:
            yield f"{name}: {split.repeated_sources:,} of {split.pairs:,} source texts are repeated"
    for name, overlap in overlaps.items():
        if overlap.sources:
            yield f"{name}: {overlap.sources:,} source texts are in the training split, too: scores will be too high"


def _format_lines(lines: Sequence[int], count: int) -> str:
    """First few of `count` line numbers."""
    ellipsis = " …" if count > MAX_SHOWN else ""
    return ", ".join(map(str, lines[:MAX_SHOWN])) + ellipsis


def _format_split(name: str, split: SplitReport) -> str:
    counts = f"{split.pairs:,} pairs ({split.num_read:,} read, {split.rejected:,} rejected)"
    rows = [f"{name}: {counts}, digest {split.digest[:12]}"]
    rows += _format_side("source", split.source)
    rows += _format_side("target", split.target)
    rows.append(f"  repeated: {split.repeated_pairs:,} pairs, {split.repeated_sources:,} source texts")
    for kind, lines in split.suspicious.items():
        rows.append(f"  suspicious, {kind}: {len(lines):,} (lines {_format_lines(lines, len(lines))})")
    return "\n".join(rows)


def _quantile_name(percent: int) -> str:
    return {0: "min", 50: "median", 100: "max"}.get(percent, f"{percent} %")


def _format_side(name: str, side: SideReport) -> list[str]:
    rows = [f"  {name}: {side.running_words:,} words, {side.distinct_words:,} distinct"]
    for unit, quantiles in (("words", side.words), ("characters", side.characters)):
        columns = ", ".join(f"{_quantile_name(percent)} {quantile:,}" for percent, quantile in quantiles.items())
        rows.append(f"    {unit:<10}  {columns}")
    main_scripts = list(side.scripts.items())[:MAX_SHOWN]
    scripts = ", ".join(f"{script} {100 * fraction:.1f} %" for script, fraction in main_scripts)
    rows.append(f"    scripts     {scripts or 'no letters'}")
    longest = ", ".join(f"line {line} ({length:,})" for line, length in side.longest)
    rows.append(f"    longest     {longest or 'none'} in characters")
    return rows
