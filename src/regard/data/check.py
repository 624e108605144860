"""Look over pairs of texts before training: what is there, what is doubled, what looks wrong; and clean it."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.pairs import ParallelTexts
from regard.errors import ConfigError

QUANTILES = (0, 5, 25, 50, 75, 95, 99, 100)
RATIO = 3.0  # a pair is suspicious when one side is this many times longer than usual beside the other
SHOWN = 5  # examples of each kind
MANY_REPEATED = 0.1  # share of repeated source texts that is worth a warning


@dataclass(frozen=True)
class SideReport:
    """One side of a set."""

    words: dict[int, int]  # quantile in percent → number
    characters: dict[int, int]
    running_words: int
    distinct_words: int
    scripts: dict[str, float]  # share of the letters
    max_length: list[tuple[int, int]]  # line and characters
    composed: int  # texts beyond ASCII in normal form C
    decomposed: int  # texts in another form


@dataclass(frozen=True)
class SplitReport:
    """One set of pairs."""

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
    """How much of another set stands in the training set too."""

    pairs: int
    sources: int
    lines: list[int]  # in the other set, the first few


@dataclass(frozen=True)
class CorpusReport:
    """What `check_pairs` found."""

    sets: dict[str, SplitReport]
    overlaps: dict[str, Overlap]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values; suspicious lines are counted and cut to the first few."""
        plain = dataclasses.asdict(self)
        for one in plain["sets"].values():
            one["suspicious"] = {
                kind: {"count": len(lines), "lines": lines[:SHOWN]} for kind, lines in one["suspicious"].items()
            }
        return plain

    def format(self) -> str:
        """Return the report for people to read."""
        parts = [_set_text(name, found) for name, found in self.sets.items()]
        for name, overlap in self.overlaps.items():
            where = f" (lines {', '.join(map(str, overlap.lines))}{_more(overlap.sources)})" if overlap.lines else ""
            parts.append(f"in train and {name}: pairs {overlap.pairs:,}, source texts {overlap.sources:,}{where}")
        parts.extend(f"warning: {warning}" for warning in self.warnings)
        return "\n".join(parts)


def check_pairs(train: ParallelTexts, others: Mapping[str, ParallelTexts] | None = None) -> CorpusReport:
    """Return what there is to say about a training set and the sets beside it.

    >>> train = ParallelTexts.from_texts(["one dog", "two dogs", "one dog"], ["ein Hund", "zwei Hunde", "ein Hund"])
    >>> report = check_pairs(train, {"test": ParallelTexts.from_texts(["two dogs"], ["zwei Hunde"])})
    >>> report.sets["train"].repeated_pairs, report.overlaps["test"].pairs
    (1, 1)
    """
    others = others or {}
    sets = {name: _set_report(pairs) for name, pairs in {"train": train, **others}.items()}
    overlaps = {name: _overlap(train, pairs) for name, pairs in others.items()}
    return CorpusReport(sets, overlaps, list(_warnings(sets, overlaps)))


@dataclass(frozen=True)
class CleaningResult:
    """What `clean_pairs` kept, and how many pairs it took out for which reason."""

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
    """Return the pairs that pass, in their order; the first rule that a pair breaks counts.

    `ratio` is how many times longer than usual one side may be beside the other (0: any); `exclude` are sets,
    such as the test set, whose source texts must not be in the result.

    >>> pairs = ParallelTexts.from_texts(["a b", "a b", "c", "d d d"], ["x y", "x y", "c", "z"])
    >>> cleaned = clean_pairs(pairs, max_words=2, drop_identical=True)
    >>> cleaned.pairs.source, cleaned.removed
    (['a b'], {'too long': 1, 'identical sides': 1, 'repeated': 1})
    """
    if ratio and ratio <= 1:
        raise ConfigError(f"ratio ({ratio}) must be greater than 1, or 0 for any")
    if min_words > max_words:
        raise ConfigError(f"min_words ({min_words}) must not exceed max_words ({max_words})")
    barred = {_plain(text) for other in exclude for text in other.source}
    off = np.exp(np.abs(_log_ratios(pairs))) if ratio else np.zeros(len(pairs))
    seen: set[tuple[str, str]] = set()
    reasons: dict[str, int] = {
        "too short": 0, "too long": 0, "length ratio": 0, "identical sides": 0, "in another set": 0, "repeated": 0
    }  # fmt: skip
    kept = []
    for number, (source, target) in enumerate(zip(pairs.source, pairs.target, strict=True)):
        counts = len(source.split()), len(target.split())
        pair = _plain(source), _plain(target)
        if min(counts) < min_words:
            reason = "too short"
        elif max(counts) > max_words:
            reason = "too long"
        elif ratio and off[number] > ratio:
            reason = "length ratio"
        elif drop_identical and pair[0] == pair[1]:
            reason = "identical sides"
        elif pair[0] in barred:
            reason = "in another set"
        elif deduplicate and pair in seen:
            reason = "repeated"
        else:
            seen.add(pair)
            kept.append(number)
            continue
        reasons[reason] += 1
    return CleaningResult(pairs.select(kept), {reason: count for reason, count in reasons.items() if count})


def _plain(text: str) -> str:
    """Return the text in one normal form, white space squeezed, so that equal texts compare equal."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _log_ratios(pairs: ParallelTexts) -> NDArray[np.float64]:
    """Return by how much each pair's logarithm of the length ratio is off the usual one; short texts less so."""
    lengths = np.array([[len(source), len(target)] for source, target in zip(pairs.source, pairs.target, strict=True)])
    if not len(lengths):
        return np.zeros(0)
    logs = np.log((lengths[:, 1] + 5) / (lengths[:, 0] + 5))
    return np.asarray(logs - np.median(logs))


def _set_report(pairs: ParallelTexts) -> SplitReport:
    plain = [(_plain(source), _plain(target)) for source, target in zip(pairs.source, pairs.target, strict=True)]
    return SplitReport(
        pairs=len(pairs),
        num_read=pairs.num_read,
        rejected=pairs.rejected,
        digest=pairs.digest,
        source=_side_report(pairs.source, pairs.locations),
        target=_side_report(pairs.target, pairs.locations),
        repeated_pairs=len(plain) - len(set(plain)),
        repeated_sources=len(plain) - len({source for source, _ in plain}),
        suspicious=_suspicious(pairs, plain),
    )


def _suspicious(pairs: ParallelTexts, plain: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    off = np.abs(_log_ratios(pairs)) > np.log(RATIO)
    rules: dict[str, Callable[[int], bool]] = {
        "length ratio": lambda number: bool(off[number]),
        "identical sides": lambda number: plain[number][0] == plain[number][1],
        "few letters": lambda number: any(map(_few_letters, plain[number])),
    }
    found = {
        kind: [int(pairs.locations[number]) for number in range(len(pairs)) if suspicious(number)]
        for kind, suspicious in rules.items()
    }
    return {kind: lines for kind, lines in found.items() if lines}


def _few_letters(text: str) -> bool:
    """Whether most of a text is digits, punctuation and other signs."""
    visible = text.replace(" ", "")
    return 2 * sum(letter.isalpha() or unicodedata.combining(letter) > 0 for letter in visible) < len(visible)


def _side_report(texts: Sequence[str], places: NDArray[np.int64]) -> SideReport:
    characters = [len(text) for text in texts]
    words: Counter[str] = Counter(word for text in texts for word in text.split())
    beyond = [text for text in texts if not text.isascii()]
    composed = sum(unicodedata.is_normalized("NFC", text) for text in beyond)
    longest = sorted(range(len(texts)), key=lambda number: (-characters[number], number))[:SHOWN]
    return SideReport(
        words=_quantiles([len(text.split()) for text in texts]),
        characters=_quantiles(characters),
        running_words=words.total(),
        distinct_words=len(words),
        scripts=_scripts(texts),
        max_length=[(int(places[number]), characters[number]) for number in longest],
        composed=composed,
        decomposed=len(beyond) - composed,
    )


def _quantiles(values: Sequence[int]) -> dict[int, int]:
    if not values:
        return {}
    found = np.percentile(values, QUANTILES, method="inverted_cdf")
    return {percent: int(value) for percent, value in zip(QUANTILES, found, strict=True)}


@cache
def _script(letter: str) -> str:
    """Return the writing system of a letter, as its Unicode name begins."""
    return unicodedata.name(letter, "unnamed").split()[0].split("-")[0].title() if letter.isalpha() else ""


def _scripts(texts: Iterable[str]) -> dict[str, float]:
    letters: Counter[str] = Counter()
    for text in texts:
        letters.update(text)
    counts: Counter[str] = Counter()
    for letter, count in letters.items():
        counts[_script(letter)] += count
    del counts[""]
    return {script: count / counts.total() for script, count in counts.most_common()}


def _overlap(train: ParallelTexts, other: ParallelTexts) -> Overlap:
    known = {_plain(source) for source in train.source}
    known_pairs = {(_plain(s), _plain(t)) for s, t in zip(train.source, train.target, strict=True)}
    both = [number for number, source in enumerate(other.source) if _plain(source) in known]
    pairs = sum((_plain(other.source[number]), _plain(other.target[number])) in known_pairs for number in both)
    return Overlap(pairs, len(both), [int(other.locations[number]) for number in both[:SHOWN]])


def _warnings(sets: Mapping[str, SplitReport], overlaps: Mapping[str, Overlap]) -> Iterable[str]:
    for name, found in sets.items():
        for side, report in (("source", found.source), ("target", found.target)):
            if report.decomposed and report.composed:
                yield (
                    f"{name}: the {side} side mixes normal forms ({report.composed:,} texts composed, "
                    f"{report.decomposed:,} not): the tokenizer makes them alike unless normalization is none"
                )
        if found.repeated_sources > MANY_REPEATED * found.pairs:
            yield f"{name}: {found.repeated_sources:,} of {found.pairs:,} source texts are repeated"
    for name, overlap in overlaps.items():
        if overlap.sources:
            yield f"{name}: source texts that are in the training set too: {overlap.sources:,}; scores will flatter"


def _more(count: int) -> str:
    return " …" if count > SHOWN else ""


def _set_text(name: str, found: SplitReport) -> str:
    rows = [
        f"{name}: {found.pairs:,} pairs ({found.num_read:,} read, {found.rejected:,} rejected), {found.digest[:12]}"
    ]
    for side, report in (("source", found.source), ("target", found.target)):
        rows.append(f"  {side}: {report.running_words:,} words, {report.distinct_words:,} distinct")
        for unit, quantiles in (("words", report.words), ("characters", report.characters)):
            shown = "  ".join(f"{percent} %: {value:,}" for percent, value in quantiles.items())
            rows.append(f"    {unit:<10}  {shown}")
        scripts = ", ".join(f"{script} {100 * share:.1f} %" for script, share in list(report.scripts.items())[:SHOWN])
        rows.append(f"    scripts     {scripts or 'no letters'}")
        longest = ", ".join(f"line {line} ({count:,} characters)" for line, count in report.max_length)
        rows.append(f"    longest     {longest}")
    rows.append(f"  repeated: {found.repeated_pairs:,} pairs, {found.repeated_sources:,} source texts")
    for kind, lines in found.suspicious.items():
        shown = ", ".join(map(str, lines[:SHOWN])) + _more(len(lines))
        rows.append(f"  suspicious, {kind}: {len(lines):,} (lines {shown})")
    return "\n".join(rows)
