"""Masked words as a task: some tokens of a row are hidden, and the model tells which they were.

Which ones, and what stands there instead, is drawn anew in every epoch: a pure function of seed, epoch and place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.noise import Noise
from regard.attention.rows import Chosen
from regard.blocks.heads import vocabulary_loss
from regard.config.data import MaskingConfig
from regard.data.order import draws
from regard.errors import CheckpointError, UsageError
from regard.models.encoder import Encoder
from regard.tasks.language import Numbers, RoundTask, Stream, even_rows
from regard.text.framing import MASKS, Framing
from regard.text.tokenizer import Tokenizer
from regard.text.wordpieces import MORE
from regard.tokens import Ids, Tokens

Flags = NDArray[np.bool_]
Draws = NDArray[np.float64]
BLOCK = 64  # masked places are rounded up to a multiple: matrix products are prepared once for each size they meet
EVALUATED_RATE = 0.15  # of the tokens, hidden in evaluations whatever training does: figures can be compared
EVALUATED_TOKENS = 8192  # that are measured together
COUNTS = "counts.json"  # a file of the model's folder: how often training text has each token
HIDING, PAIRING = 4, 5  # purposes of chance


@dataclass(frozen=True)
class Masking:
    """Which tokens of a row are hidden, and what stands there instead."""

    mask: int  # token number
    ordinary: Flags  # [V], tokens that may be hidden: no special ones
    continues: Flags  # [V], tokens that continue a word
    config: MaskingConfig

    @classmethod
    def of(cls, tokenizer: Tokenizer, config: MaskingConfig) -> Masking:
        """Return the masking of a tokenizer's tokens; one without a mask token is refused."""
        mask = Framing(tokenizer).mask
        if mask < 0:
            raise UsageError(f"the tokenizer has no mask token ({' or '.join(MASKS)}): it is not one for masked words")
        ordinary = np.ones(tokenizer.size, dtype=bool)
        ordinary[sorted(tokenizer.specials)] = False
        return cls(mask, ordinary, continuing(tokenizer), config)

    def for_evaluation(self) -> Masking:
        """Return the masking that models are measured with: tokens one by one, and none can be seen."""
        plain = {"rate": EVALUATED_RATE, "masked": 1.0, "random": 0.0, "whole_words": False}
        return replace(self, config=self.config.override(plain))

    def hide(self, ids: Ids, drawn: Draws) -> tuple[Ids, Flags]:  # [B, T], [3, B, T]
        """Return the rows with some tokens hidden, and which those are, [B, T]; in every row at least one word is.

        >>> from regard.text.wordpieces import learn_word_pieces
        >>> from regard.config.data import TokenizerConfig
        >>> tokenizer = learn_word_pieces(["one two three four"] * 9, TokenizerConfig())
        >>> masking = Masking.of(tokenizer, MaskingConfig(rate=0.5, masked=1.0, random=0.0))
        >>> rows = np.array([tokenizer.encode("one two three four").ids], dtype=np.int32)
        >>> given, chosen = masking.hide(rows, np.array([[[0.9, 0.2, 0.7, 0.1]]] * 3))
        >>> tokenizer.pieces(given[0]), chosen[0].tolist()
        (['one', '[MASK]', 'three', '[MASK]'], [False, True, False, True])
        """
        chosen = self._chosen(ids, drawn[0])
        masked, random = self.config.masked, self.config.random
        words = np.flatnonzero(self.ordinary).astype(ids.dtype)
        others = words[(drawn[2] * len(words)).astype(np.int64)]
        instead = np.where(drawn[1] < masked + random, others, ids)
        instead[drawn[1] < masked] = self.mask
        return np.where(chosen, instead, ids), chosen

    def _chosen(self, ids: Ids, drawn: Draws) -> Flags:
        """Return the tokens with the lowest draws, so many in each row as the rate says, or the last word fewer."""
        if self.config.whole_words:
            inner = self.continues[ids]
            inner[:, 0] = False
            heads = np.maximum.accumulate(np.where(inner, 0, np.arange(ids.shape[1])), axis=1)
            drawn = np.take_along_axis(drawn, heads, axis=1)  # a word's tokens share the draw of the first
        ordinary = self.ordinary[ids]
        drawn = np.where(ordinary, drawn, 2.0)
        wanted = np.rint(self.config.rate * ordinary.sum(1)).astype(np.int64)
        ranked = np.sort(np.append(drawn, np.full((len(ids), 1), 2.0), axis=1), axis=1)
        limit = np.take_along_axis(ranked, wanted[:, None], axis=1)
        chosen: Flags = ordinary & ((drawn < limit) | (drawn == ranked[:, :1]))
        return chosen


def continuing(tokenizer: Tokenizer) -> Flags:
    """Return which tokens continue a word, [V]: by ## where a vocabulary has it, else letters without a space before.

    >>> from regard.text.wordpieces import learn_masked
    >>> from regard.config.data import TokenizerConfig
    >>> words = learn_masked(["ab, abab"] * 9, TokenizerConfig(kind="wordpiece"))
    >>> [piece for piece, inner in zip(words.pieces(range(words.size)), continuing(words)) if inner]
    ['##a', '##b', '##ab']
    """
    pieces = tokenizer.pieces(range(tokenizer.size))
    special = tokenizer.specials
    inner = [piece.startswith(MORE) and len(piece) > len(MORE) for piece in pieces]
    marked = any(inner)
    found = [
        number not in special and (inner[number] if marked else piece[:1].isalnum())
        for number, piece in enumerate(pieces)
    ]
    return np.array(found, dtype=bool)


@dataclass(frozen=True)
class MaskedBatch:
    """Rows with hidden tokens, where these stand and which they were; of pairs also which do not belong together."""

    rows: Tokens
    places: Numbers  # [M], of all tokens end to end
    targets: Numbers  # [M]
    apart: Numbers | None = None  # [B], 0: the second text follows the first, 1: it is from elsewhere

    @property
    def count(self) -> int:
        """Predictions of words."""
        return len(self.targets)

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.rows)} rows of {self.rows.lengths.max()} tokens, {self.count} of them hidden"


@dataclass(frozen=True)
class Layout:
    """Rows of a stream as a model reads them: special tokens around one text, or around the two of a pair."""

    first: int  # token numbers
    last: int
    masking: Masking
    pairs: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer, config: MaskingConfig) -> Layout:
        """Return the layout for a tokenizer's tokens."""
        return cls(tokenizer.start, tokenizer.end, Masking.of(tokenizer, config), config.next_sentence)

    @property
    def room(self) -> int:
        """How many special tokens a row has."""
        return 3 if self.pairs else 2

    def for_evaluation(self) -> Layout:
        """Return the layout that models are measured with."""
        return replace(self, masking=self.masking.for_evaluation())

    def batch(self, text: Stream, numbers: Numbers, first: int, *, seed: int, epoch: int) -> MaskedBatch:
        """Return the rows with these numbers, some tokens hidden."""

        def drawn(at: Numbers, purpose: int) -> Draws:
            return draws(at, seed=seed, epoch=epoch, digest=text.digest, purpose=purpose, count=3)

        places = text.places(numbers, first)  # [B, T]
        split, apart = np.full(len(places), text.length), None
        ids = text.at(places)
        if self.pairs:
            split, apart, ids = _paired(text, places, drawn(places[:, 0], PAIRING))
        given, hidden = self.masking.hide(ids, drawn(places, HIDING))
        width = text.length + self.room
        inner = np.arange(text.length)
        at = inner + 1 + (inner >= split[:, None])  # behind the first text comes a special token
        rows = np.full((len(ids), width), self.last, dtype=np.int32)
        rows[:, 0] = self.first
        np.put_along_axis(rows, at, given, axis=1)
        tokens = even_rows(rows)
        if self.pairs:
            second = np.arange(width) > split[:, None] + 1
            tokens = replace(tokens, segments=second.astype(np.int32).reshape(-1))
        standing = (np.arange(len(ids))[:, None] * width + at)[hidden]
        return MaskedBatch(tokens, standing.astype(np.int64), ids[hidden].astype(np.int64), apart)


def _paired(text: Stream, places: Numbers, drawn: Draws) -> tuple[Numbers, Numbers, Ids]:
    """Return after how many tokens rows are split, which second texts are from elsewhere, and the tokens."""
    length, total = text.length, len(text.ids)
    split = (length * (0.25 + 0.5 * drawn[0])).astype(np.int64)  # between a quarter and three quarters
    apart = (drawn[1] < 0.5).astype(np.int64)
    far = length + (drawn[2] * max(1, total - 2 * length)).astype(np.int64)  # at least a row away
    moved = places + np.where((np.arange(length) >= split[:, None]) & (apart[:, None] == 1), far[:, None], 0)
    return split, apart, text.at(moved)


class MaskedTask(RoundTask):
    """Knows what a batch of rows with hidden tokens means."""

    def __init__(self, train: Stream, layout: Layout, *, seed: int) -> None:
        super().__init__(train, seed=seed)
        self.layout = layout

    def batch(self, numbers: Numbers, epoch: int) -> MaskedBatch:
        """Return training rows as this epoch cuts and hides them."""
        return self.layout.batch(self.train, numbers, self.first(epoch), seed=self.seed, epoch=epoch)

    def loss(self, model: Encoder, batch: MaskedBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the hidden words.

        To be minimised is also the mean loss of telling which pairs belong together, as much as the mean over words.
        """
        told = tell_masked(model, batch, smoothing, noise)
        return told.smoothed, told.plain


@dataclass(frozen=True)
class Told:
    """What a model loses on a batch."""

    smoothed: Tensor  # to be minimised
    plain: Tensor  # of the words
    scores: Tensor | None  # of pairs, [B, 2]


def tell_masked(model: Encoder, batch: MaskedBatch, smoothing: float = 0.0, noise: Noise | None = None) -> Told:
    """Return the loss over hidden words: only their states are ever projected onto the vocabulary."""
    ids, rows = model.door(batch.rows)
    chosen, types = Chosen(rows, batch.places, BLOCK), model.door_types(batch.rows, rows.spare)
    if batch.apart is None:
        states = needed = model(ids, rows, types, noise, chosen)  # [M, D]
    else:  # the first tokens are needed, too
        states = model(ids, rows, types, noise)  # [N, D]
        needed = states.index_select(0, chosen.places)
    hidden = model.masked_states(needed)
    targets = torch.from_numpy(np.append(batch.targets, np.zeros(chosen.spare, dtype=np.int64))).to(hidden.device)
    smoothed, plain = vocabulary_loss(
        hidden, model.output_weight, model.output_bias, targets, smoothing, count=batch.count
    )
    if batch.apart is None:
        return Told(smoothed, plain, None)
    scores = model.next_scores(states, rows, noise).float()
    wrong = torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch.apart).to(scores.device))
    return Told(smoothed + batch.count * wrong, plain, scores)


def fixed_batches(text: Stream, layout: Layout) -> Iterator[MaskedBatch]:
    """Yield the rows of a text with the same tokens hidden every time, as models are measured with them."""
    measured, size = layout.for_evaluation(), max(1, EVALUATED_TOKENS // text.length)
    for first in range(0, len(text), size):
        numbers = np.arange(first, min(first + size, len(text)))
        yield measured.batch(text, numbers, 0, seed=0, epoch=0)


@dataclass(frozen=True)
class MaskedScores:
    """How well a model tells the hidden tokens of a text."""

    loss: float  # a token, in nats
    count: int
    together: float | None  # share of pairs that were told right, in percent


@torch.inference_mode()
def masked_scores(model: Encoder, text: Stream, layout: Layout) -> MaskedScores:
    """Measure a model on a text."""
    lost, count, right, pairs = 0.0, 0, 0, 0
    for batch in fixed_batches(text, layout):
        told = tell_masked(model, batch)
        lost, count = lost + float(told.plain), count + batch.count
        if told.scores is not None and batch.apart is not None:
            right += int((told.scores.argmax(1).cpu().numpy() == batch.apart).sum())
            pairs += len(batch.apart)
    return MaskedScores(lost / count, count, 100.0 * right / pairs if pairs else None)


def token_counts(text: Stream, size: int) -> NDArray[np.int64]:
    """Return how often each of `size` tokens occurs in a text."""
    return np.bincount(text.ids, minlength=size)


def token_counts_of(folder: Path, size: int) -> NDArray[np.int64] | None:
    """Return the counts that a model's folder holds for its tokens; nothing for a folder from elsewhere."""
    try:
        found = np.array(json.loads((folder / COUNTS).read_text("utf-8")), dtype=np.int64)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"{folder / COUNTS}: not a list of counts: {error}") from None
    if found.shape != (size,) or (found < 0).any():
        raise CheckpointError(f"{folder / COUNTS}: {size} counts are needed, one for each token")
    return found


def unigram_loss(counts: NDArray[np.int64], text: Stream, layout: Layout) -> float:
    """Return what tokens told by nothing but their counts (plus one) lose at the same places, a token in nats.

    It is the least that a model must beat: it has learned which words are frequent and nothing of what stands around.
    """
    known = np.where(layout.masking.ordinary, counts + 1.0, 0.0)
    with np.errstate(divide="ignore"):
        losses = -np.log(known / known.sum())
    told = np.concatenate([losses[batch.targets] for batch in fixed_batches(text, layout)])
    return float(told.mean())
