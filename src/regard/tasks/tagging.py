"""Tagging: one tag per word, by encoders and by RNN text encoders.

A tag is predicted at the word's first subword; by causal models at its last one, which has seen the whole word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from regard.backends import EncoderBackend
from regard.errors import UsageError
from regard.packed_tokens import Ids
from regard.tasks.text_model import PreprocessedTexts, TextPreprocessor
from regard.tasks.windows import OVERLAP_DIVISOR, EncodedTexts, window_spans
from regard.text.special_tokens import SpecialTokens, TruncationReport

if TYPE_CHECKING:
    from regard.models.rnn_text import RnnTagger

Indices = NDArray[np.int64]
Spans = Sequence[tuple[int, int]]
# per batch: row indices, offsets, logits of all tokens
TokenLogits = Iterable[tuple[Indices, Ids, NDArray[np.float32]]]
FIRST_SUBWORD = "first"  # at which a word is predicted
LAST_SUBWORD = "last"
OUTSIDE_LOGPROB = -30.0  # of all tags but the first for a word without subwords
_WORD_OR_PUNCTUATION = re.compile(r"['’](?:s|re|ve|ll|d|m|t)\b|[@#]?\w+(?:[-._&/]+\w+)*|[^\w\s]", re.IGNORECASE)


@dataclass
class EncodedSentences(EncodedTexts):
    """Rows of sentences; each word is predicted at one position of one row."""

    row_fields = (*EncodedTexts.row_fields, "positions", "word_ids")

    positions: list[Indices] = field(default_factory=list)  # per row, those of the words it predicts
    word_ids: list[Indices] = field(default_factory=list)  # per row, indices of these words in the sentence

    def iter_token_logits(self, model: EncoderBackend) -> TokenLogits:
        """Yield the logits of all tokens, batch by batch."""
        for indices, tokens, logits in self.iter_logits(model):
            yield indices, tokens.offsets, logits


def packed_indices(positions: Sequence[Indices], rows: Indices, offsets: Ids) -> Indices:
    """Positions of rows as token indices of the packed batch."""
    return np.concatenate([positions[row] + start for row, start in zip(rows, offsets, strict=False)])


def word_spans(words: Sequence[str]) -> list[tuple[int, int]]:
    """Character spans of words in the text that joins them with spaces.

    >>> word_spans(["In", "York"])
    [(0, 2), (3, 7)]
    """
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    return [(int(start), int(start) + len(word)) for start, word in zip(starts, words, strict=False)]


def split_words(text: str) -> list[tuple[int, int]]:
    """Split a text into words and punctuation marks, as character spans.

    Punctuation stays inside a word (`St.-Denis`), as do a leading @ or #; a clitic such as 's is split off.

    >>> text = "It's @jo, in St.-Denis."
    >>> [text[start:stop] for start, stop in split_words(text)]
    ['It', "'s", '@jo', ',', 'in', 'St.-Denis', '.']
    """
    return [match.span() for match in _WORD_OR_PUNCTUATION.finditer(text)]


def encode_words(
    special_tokens: SpecialTokens,
    texts: Sequence[str],
    spans: Sequence[Spans],
    max_length: int,
    word_token: str = FIRST_SUBWORD,
) -> EncodedSentences:
    """Encode sentences as rows of at most `max_length` tokens; a word is predicted in the window with most context.

    `word_token` says at which of its subwords: first or last.
    """
    capacity = max_length - special_tokens.num_special()
    if capacity < 2:
        raise UsageError(f"rows of {max_length} tokens leave no room for a sentence: raise --max-length")
    num_before = len(special_tokens.single_template.before)
    encoded = EncodedSentences(truncation=TruncationReport(texts=len(texts), max_length=max_length))
    for text_index, (text, text_spans) in enumerate(zip(texts, spans, strict=True)):
        encoding = special_tokens.tokenizer.encode(text)
        subwords = (last_subwords if word_token == LAST_SUBWORD else first_subwords)(text_spans, encoding.spans)
        windows = window_spans(len(encoding.ids), capacity, capacity // OVERLAP_DIVISOR)
        encoded.truncation.tokens += len(encoding.ids)
        encoded.truncation.windowed += len(windows) > 1
        words = np.flatnonzero(subwords >= 0)
        word_windows = _windows_with_most_context(subwords[words], windows)
        for window, (start, stop) in enumerate(windows):
            window_words = words[word_windows == window]
            row, token_types = special_tokens.add(encoding.ids[start:stop])
            encoded.add(row, token_types, text_index)
            encoded.positions.append(subwords[window_words] - start + num_before)
            encoded.word_ids.append(window_words)
    encoded.truncation.windows = len(encoded)
    return encoded


def _windows_with_most_context(subwords: Indices, windows: Spans) -> Indices:
    """Index of the window in which each subword is farthest from the edges."""
    if not len(subwords):
        return subwords
    edges = np.array(windows)  # [windows, 2]
    context = np.minimum(subwords[:, None] - edges[:, 0], edges[:, 1] - 1 - subwords[:, None])
    windows_by_context: Indices = context.argmax(1)
    return windows_by_context


def first_subwords(words: Spans, subwords: Spans) -> Indices:
    """Index of each word's first subword, by character spans; -1 for a word without any.

    >>> first_subwords([(0, 5), (6, 8)], [(0, 2), (2, 5), (6, 8)]).tolist()
    [0, 2]
    """
    starts = np.array([start for start, _ in subwords], dtype=np.int64)
    stops = np.array([stop for _, stop in subwords], dtype=np.int64)
    first = np.full(len(words), -1, dtype=np.int64)
    subword = 0
    for word, (word_start, word_stop) in enumerate(words):
        while subword < len(starts) and (starts[subword] < word_start or stops[subword] == starts[subword]):
            subword += 1
        if subword < len(starts) and starts[subword] < word_stop:
            first[word] = subword
    return first


def last_subwords(words: Spans, subwords: Spans) -> Indices:
    """Index of each word's last subword, by character spans; -1 for a word without any.

    >>> last_subwords([(0, 5), (6, 8)], [(0, 2), (2, 5), (6, 8)]).tolist()
    [1, 2]
    """
    last = first_subwords(words, subwords)
    for word, (_, word_stop) in enumerate(words):
        while 0 <= last[word] < len(subwords) - 1 and subwords[last[word] + 1][0] < word_stop:
            last[word] += 1
    return last


class WordPositions(Protocol):
    """Rows of sentences, and the positions at which words are predicted."""

    positions: list[Indices]  # per row, those of the words it predicts
    word_ids: list[Indices]  # per row, indices of these words in the sentence

    @property
    def text_indices(self) -> Sequence[int]:
        """Sentence of each row."""
        ...


def tag_logprobs(
    rows: WordPositions, logits: TokenLogits, counts: Sequence[int], num_tags: int
) -> list[NDArray[np.float64]]:
    """Tag logprobs of each word of each sentence, [words, tags]; a word without subwords is outside of entities."""
    logprobs = [np.zeros((count, num_tags)) for count in counts]
    for sentence_logprobs in logprobs:
        sentence_logprobs[:, 1:] = OUTSIDE_LOGPROB
    for indices, offsets, token_logits in logits:
        for index, start in zip(indices, offsets, strict=False):
            word_logits = token_logits[rows.positions[index] + start].astype(np.float64)
            if len(word_logits):
                word_logits -= word_logits.max(axis=1, keepdims=True)
            log_sums = np.log(np.exp(word_logits).sum(1, keepdims=True))
            logprobs[rows.text_indices[index]][rows.word_ids[index]] = word_logits - log_sums
    return logprobs


@dataclass
class RnnSentences(PreprocessedTexts):
    """Sentences of an RNN text encoder, and the positions at which words are predicted; truncated words have none."""

    positions: list[Indices] = field(default_factory=list)  # per sentence, first tokens of its words
    word_ids: list[Indices] = field(default_factory=list)  # per sentence, indices of these words

    @classmethod
    def encode(cls, preprocessor: TextPreprocessor, texts: Sequence[str], spans: Sequence[Spans]) -> RnnSentences:
        """Encode texts whose words have these character spans."""
        encoded = preprocessor.encode(texts)
        sentences = cls(
            encoded.texts,
            encoded.rows,
            spans=encoded.spans,
            truncated=encoded.truncated,
            features=encoded.features,
        )
        for text_spans, token_spans in zip(spans, sentences.spans, strict=True):
            first_tokens = first_subwords(text_spans, token_spans)
            words = np.flatnonzero(first_tokens >= 0)
            sentences.word_ids.append(words)
            sentences.positions.append(first_tokens[words])
        return sentences

    def select(self, indices: Indices) -> Self:
        """The sentences at these indices, with their cached features."""
        return replace(
            super().select(indices),
            positions=[self.positions[index] for index in indices],
            word_ids=[self.word_ids[index] for index in indices],
        )

    @property
    def text_indices(self) -> Sequence[int]:
        """Sentence of each row: a row is a sentence."""
        return range(len(self))

    def iter_token_logits(self, model: RnnTagger) -> TokenLogits:
        """Yield the logits of all tokens, batch by batch."""
        for indices, batch in self.batches():
            yield indices, batch.tokens.offsets, model.logits(batch)
