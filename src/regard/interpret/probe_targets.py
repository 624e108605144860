"""What a probe predicts for each word: a tag, its position, or a depth; and the controls with which it is compared.

The control task (Hewitt & Liang 2019) gives every word type a random value, drawn from the distribution of the real
ones. Nothing but the word's identity predicts it: a probe that learns it well has memorised words. Selectivity is the
score of the task minus that of the control.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from regard.data.batching import RngPurpose, epoch_rng
from regard.data.conll import TaggedSentences
from regard.errors import DataError, UsageError, nearest

TARGETS = ("tags", "position", "depth")
TEST_FRACTION = 0.2
HASH_VALUES = 1 << 32  # of crc32
Values = NDArray[np.float64]


@dataclass(frozen=True)
class ProbeTarget:
    """Values to predict, of every word of every sentence, end to end."""

    words: list[str]
    values: Values  # indices of labels, or numbers
    sentence_ids: NDArray[np.int64]  # sentence of each word
    labels: tuple[str, ...] = ()  # none: the values are numbers

    @property
    def is_classification(self) -> bool:
        """Whether the values are labels, and not numbers."""
        return bool(self.labels)


def build_target(name: str, sentences: TaggedSentences, labels: Sequence[str] = ()) -> ProbeTarget:
    """Values of a target for all words; of tags, the indices among `labels`.

    >>> from regard.data.conll import TaggedSentence
    >>> sentences = TaggedSentences.from_sentences([TaggedSentence(("(", "a", ")"), ("1", "1", "1"))])
    >>> build_target("position", sentences).values.tolist(), build_target("depth", sentences).values.tolist()
    ([0.0, 1.0, 2.0], [1.0, 1.0, 1.0])
    """
    if name not in TARGETS:
        raise UsageError(f"unknown target {name!r}{nearest(name, TARGETS)}: there are {', '.join(TARGETS)}")
    rows = sentences.sentences
    lengths = [len(sentence.words) for sentence in rows]
    if name == "position":
        values = [np.arange(length, dtype=np.float64) for length in lengths]
    elif name == "depth":
        values = [_parse_depths(sentence.tags, sentence.location) for sentence in rows]
    else:
        values = [tag_ids.astype(np.float64) for tag_ids in sentences.tag_ids(labels)]
    return ProbeTarget(
        [word for sentence in rows for word in sentence.words],
        np.concatenate(values),
        sentence_ids=np.repeat(np.arange(len(rows)), lengths),
        labels=tuple(labels) if name == "tags" else (),
    )


def _parse_depths(tags: Sequence[str], location: str) -> Values:
    try:
        return np.array([int(tag) for tag in tags], dtype=np.float64)
    except ValueError:
        wrong = next(tag for tag in tags if not tag.lstrip("+-").isdecimal())
        raise DataError(
            f"the depth {wrong!r:.80} is not a whole number",
            location=location,
            advice="--label N selects the column of depths",
        ) from None


def split_sentences(sentences: TaggedSentences, *, sample: int, seed: int) -> tuple[TaggedSentences, TaggedSentences]:
    """Draw at most `sample` sentences and divide them into training and test; equal sentences are in one part."""
    by_words: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, sentence in enumerate(sentences.sentences):
        by_words[sentence.words].append(index)
    distinct = sorted(by_words)
    rng = epoch_rng(seed=seed, epoch=0, digest=sentences.digest, purpose=RngPurpose.HOLD_OUT)
    drawn = [distinct[index] for index in rng.permutation(len(distinct))[:sample]]
    num_test = round(TEST_FRACTION * len(drawn))
    if not num_test or num_test == len(drawn):
        raise UsageError(f"{len(drawn)} different sentences are too few to hold some out: name test data with --test")
    test, train = (
        sorted(index for words in part for index in by_words[words]) for part in (drawn[:num_test], drawn[num_test:])
    )
    return sentences.select(train), sentences.select(test)


def without_sentences(sentences: TaggedSentences, others: TaggedSentences, *, sample: int) -> TaggedSentences:
    """The first `sample` sentences that are not among others."""
    excluded = {sentence.words for sentence in others.sentences}
    remaining = [index for index, sentence in enumerate(sentences.sentences) if sentence.words not in excluded]
    if not remaining:
        raise UsageError("all sentences are in the test data, too: name other training data")
    return sentences.select(remaining[:sample])


def control_target(train: ProbeTarget, target: ProbeTarget, seed: int) -> ProbeTarget:
    """Random values by word type, drawn from the values of the training words; the same for the same seed and word.

    >>> target = ProbeTarget(["a", "b", "a"], np.array([0.0, 1.0, 1.0]), np.zeros(3, np.int64), ("x", "y"))
    >>> control = control_target(target, target, seed=1).values
    >>> bool(control[0] == control[2])
    True
    """
    values = np.sort(train.values)
    quantile = {word: zlib.crc32(f"{seed} {word}".encode()) / HASH_VALUES for word in set(target.words)}
    indices = np.array([int(quantile[word] * len(values)) for word in target.words])
    return replace(target, values=values[indices])


def constant_baseline(train: ProbeTarget, test: ProbeTarget) -> Values:
    """The most frequent label, or the mean, for every word."""
    if not train.is_classification:
        return np.full(len(test.values), train.values.mean())
    return np.full(len(test.values), float(np.bincount(train.values.astype(np.int64)).argmax()))


def word_baseline(train: ProbeTarget, test: ProbeTarget) -> Values:
    """The most frequent label, or the mean, of each word in training; of a new word, that of all words."""
    by_word: dict[str, list[float]] = defaultdict(list)
    for word, value in zip(train.words, train.values.tolist(), strict=True):
        by_word[word].append(value)
    default = constant_baseline(train, test)[0]

    def summarize(values: list[float]) -> float:
        return Counter(values).most_common(1)[0][0] if train.is_classification else float(np.mean(values))

    of_word = {word: summarize(values) for word, values in by_word.items()}
    return np.array([of_word.get(word, default) for word in test.words])
