"""Masked words as a task: some tokens of a row are hidden, and the model tells which they were.

Which ones, and what stands there instead, is drawn anew in every epoch: a pure function of seed, epoch and place.

What a masked-word model puts into the gaps of a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise
from regard.attention.packed_batch import SelectedTokens
from regard.config.data import MaskingConfig
from regard.data.batching import position_uniforms
from regard.errors import CheckpointError, UsageError
from regard.models.bert import Bert
from regard.models.layers.losses import top_tokens, vocabulary_loss
from regard.tasks.token_stream import Numbers, StreamObjective, TokenStream, equal_rows
from regard.text.special_tokens import MASKS, SpecialTokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import MORE
from regard.tokens import Ids, Tokens

Flags = NDArray[np.bool_]
Draws = NDArray[np.float64]
TOKEN_MULTIPLE = (
    64  # masked places are rounded up to a multiple: matrix products are prepared once for each size they meet
)
EVALUATED_RATE = 0.15  # of the tokens, hidden in evaluations whatever training does: figures can be compared
EVALUATED_TOKENS = 8192  # that are measured together
COUNTS = "counts.json"  # a file of the model's folder: how often training text has each token
HIDING, PAIRING = 4, 5  # purposes of chance


@dataclass(frozen=True)
class TokenMasker:
    """Which tokens of a row are hidden, and what stands there instead."""

    mask: int  # token number
    ordinary: Flags  # [V], tokens that may be hidden: no special ones
    continues: Flags  # [V], tokens that continue a word
    config: MaskingConfig

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, config: MaskingConfig) -> TokenMasker:
        """Return the masking of a tokenizer's tokens; one without a mask token is refused."""
        mask = SpecialTokens(tokenizer).mask
        if mask < 0:
            raise UsageError(f"the tokenizer has no mask token ({' or '.join(MASKS)}): it is not one for masked words")
        ordinary = np.ones(tokenizer.vocab_size, dtype=bool)
        ordinary[sorted(tokenizer.special_ids)] = False
        return cls(mask, ordinary, continuation_tokens(tokenizer), config)

    def for_evaluation(self) -> TokenMasker:
        """Return the masking that models are measured with: tokens one by one, and none can be seen."""
        plain = {
            "mask_rate": EVALUATED_RATE,
            "mask_token_share": 1.0,
            "random_token_share": 0.0,
            "whole_word_masking": False,
        }
        return replace(self, config=self.config.override(plain))

    def mask_tokens(self, ids: Ids, uniforms: Draws) -> tuple[Ids, Flags]:  # [B, T], [3, B, T]
        """Return the rows with some tokens hidden, and which those are, [B, T]; in every row at least one word is.

        >>> from regard.text.train import train_wordpiece
        >>> from regard.config.data import TokenizerConfig
        >>> tokenizer = train_wordpiece(["one two three four"] * 9, TokenizerConfig())
        >>> masking = TokenMasker.from_tokenizer(tokenizer, MaskingConfig(mask_rate=0.5, mask_token_share=1.0, random_token_share=0.0))
        >>> rows = np.array([tokenizer.encode("one two three four").ids], dtype=np.int32)
        >>> given, chosen = masking.mask_tokens(rows, np.array([[[0.9, 0.2, 0.7, 0.1]]] * 3))
        >>> tokenizer.subwords(given[0]), chosen[0].tolist()
        (['one', '[MASK]', 'three', '[MASK]'], [False, True, False, True])
        """
        chosen = self._chosen(ids, uniforms[0])
        masked, random = self.config.mask_token_share, self.config.random_token_share
        words = np.flatnonzero(self.ordinary).astype(ids.dtype)
        others = words[(uniforms[2] * len(words)).astype(np.int64)]
        instead = np.where(uniforms[1] < masked + random, others, ids)
        instead[uniforms[1] < masked] = self.mask
        return np.where(chosen, instead, ids), chosen

    def _chosen(self, ids: Ids, drawn: Draws) -> Flags:
        """Return the tokens with the lowest draws, so many in each row as the rate says, or the last word fewer."""
        if self.config.whole_word_masking:
            inner = self.continues[ids]
            inner[:, 0] = False
            heads = np.maximum.accumulate(np.where(inner, 0, np.arange(ids.shape[1])), axis=1)
            drawn = np.take_along_axis(drawn, heads, axis=1)  # a word's tokens share the draw of the first
        ordinary = self.ordinary[ids]
        drawn = np.where(ordinary, drawn, 2.0)
        wanted = np.rint(self.config.mask_rate * ordinary.sum(1)).astype(np.int64)
        ranked = np.sort(np.append(drawn, np.full((len(ids), 1), 2.0), axis=1), axis=1)
        limit = np.take_along_axis(ranked, wanted[:, None], axis=1)
        chosen: Flags = ordinary & ((drawn < limit) | (drawn == ranked[:, :1]))
        return chosen


def continuation_tokens(tokenizer: Tokenizer) -> Flags:
    """Return which tokens continue a word, [V]: by ## where a vocabulary has it, else letters without a space before.

    >>> from regard.text.train import train_masked_tokenizer
    >>> from regard.config.data import TokenizerConfig
    >>> words = train_masked_tokenizer(["ab, abab"] * 9, TokenizerConfig(kind="wordpiece"))
    >>> [piece for piece, inner in zip(words.subwords(range(words.vocab_size)), continuation_tokens(words)) if inner]
    ['##a', '##b', '##ab']
    """
    pieces = tokenizer.subwords(range(tokenizer.vocab_size))
    special = tokenizer.special_ids
    inner = [piece.startswith(MORE) and len(piece) > len(MORE) for piece in pieces]
    marked = any(inner)
    found = [
        number not in special and (inner[number] if marked else piece[:1].isalnum())
        for number, piece in enumerate(pieces)
    ]
    return np.array(found, dtype=bool)


@dataclass(frozen=True)
class MaskedLMBatch:
    """Rows with hidden tokens, where these stand and which they were; of pairs also which do not belong together."""

    rows: Tokens
    positions: Numbers  # [M], of all tokens end to end
    targets: Numbers  # [M]
    apart: Numbers | None = None  # [B], 0: the second text follows the first, 1: it is from elsewhere

    @property
    def num_predictions(self) -> int:
        """Predictions of words."""
        return len(self.targets)

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.rows)} rows of {self.rows.lengths.max()} tokens, {self.num_predictions} of them hidden"


@dataclass(frozen=True)
class MaskedRowLayout:
    """Rows of a stream as a model reads them: special tokens around one text, or around the two of a pair."""

    first: int  # token numbers
    last: int
    masking: TokenMasker
    pairs: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer, config: MaskingConfig) -> MaskedRowLayout:
        """Return the layout for a tokenizer's tokens."""
        return cls(
            tokenizer.bos_id, tokenizer.eos_id, TokenMasker.from_tokenizer(tokenizer, config), config.next_sentence
        )

    @property
    def num_special(self) -> int:
        """How many special tokens a row has."""
        return 3 if self.pairs else 2

    def for_evaluation(self) -> MaskedRowLayout:
        """Return the layout that models are measured with."""
        return replace(self, masking=self.masking.for_evaluation())

    def batch(self, text: TokenStream, numbers: Numbers, first: int, *, seed: int, epoch: int) -> MaskedLMBatch:
        """Return the rows with these numbers, some tokens hidden."""

        def drawn(at: Numbers, purpose: int) -> Draws:
            return position_uniforms(at, seed=seed, epoch=epoch, digest=text.digest, purpose=purpose, count=3)

        places = text.indices(numbers, first)  # [B, T]
        split, apart = np.full(len(places), text.length), None
        ids = text.tokens_at(places)
        if self.pairs:
            split, apart, ids = _paired(text, places, drawn(places[:, 0], PAIRING))
        given, hidden = self.masking.mask_tokens(ids, drawn(places, HIDING))
        width = text.length + self.num_special
        inner = np.arange(text.length)
        at = inner + 1 + (inner >= split[:, None])  # behind the first text comes a special token
        rows = np.full((len(ids), width), self.last, dtype=np.int32)
        rows[:, 0] = self.first
        np.put_along_axis(rows, at, given, axis=1)
        tokens = equal_rows(rows)
        if self.pairs:
            second = np.arange(width) > split[:, None] + 1
            tokens = replace(tokens, token_types=second.astype(np.int32).reshape(-1))
        standing = (np.arange(len(ids))[:, None] * width + at)[hidden]
        return MaskedLMBatch(tokens, standing.astype(np.int64), ids[hidden].astype(np.int64), apart)


def _paired(text: TokenStream, places: Numbers, drawn: Draws) -> tuple[Numbers, Numbers, Ids]:
    """Return after how many tokens rows are split, which second texts are from elsewhere, and the tokens."""
    length, total = text.length, len(text.ids)
    split = (length * (0.25 + 0.5 * drawn[0])).astype(np.int64)  # between a quarter and three quarters
    apart = (drawn[1] < 0.5).astype(np.int64)
    far = length + (drawn[2] * max(1, total - 2 * length)).astype(np.int64)  # at least a row away
    moved = places + np.where((np.arange(length) >= split[:, None]) & (apart[:, None] == 1), far[:, None], 0)
    return split, apart, text.tokens_at(moved)


class MaskedLMObjective(StreamObjective):
    """Knows what a batch of rows with hidden tokens means."""

    def __init__(self, train: TokenStream, layout: MaskedRowLayout, *, seed: int) -> None:
        super().__init__(train, seed=seed)
        self.layout = layout

    def batch(self, numbers: Numbers, epoch: int) -> MaskedLMBatch:
        """Return training rows as this epoch cuts and hides them."""
        return self.layout.batch(self.train, numbers, self.epoch_offset(epoch), seed=self.seed, epoch=epoch)

    def loss(self, model: Bert, batch: MaskedLMBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sums of smoothed and plain loss over the hidden words.

        To be minimised is also the mean loss of telling which pairs belong together, as much as the mean over words.
        """
        told = masked_lm_loss(model, batch, smoothing, noise)
        return told.smoothed, told.unsmoothed


@dataclass(frozen=True)
class MaskedLMLoss:
    """What a model loses on a batch."""

    smoothed: Tensor  # to be minimised
    unsmoothed: Tensor  # of the words
    scores: Tensor | None  # of pairs, [B, 2]


def masked_lm_loss(
    model: Bert, batch: MaskedLMBatch, smoothing: float = 0.0, noise: Noise | None = None
) -> MaskedLMLoss:
    """Return the loss over hidden words: only their states are ever projected onto the vocabulary."""
    ids, rows = model.to_tensors(batch.rows)
    chosen, types = (
        SelectedTokens(rows, batch.positions, TOKEN_MULTIPLE),
        model.token_type_tensor(batch.rows, rows.num_padding),
    )
    if batch.apart is None:
        states = needed = model(ids, rows, types, noise, chosen)  # [M, D]
    else:  # the first tokens are needed, too
        states = model(ids, rows, types, noise)  # [N, D]
        needed = states.index_select(0, chosen.indices)
    hidden = model.masked_lm_hidden(needed)
    targets = torch.from_numpy(np.append(batch.targets, np.zeros(chosen.num_padding, dtype=np.int64))).to(hidden.device)
    smoothed, plain = vocabulary_loss(
        hidden, model.output_weight, model.output_bias, targets, smoothing, count=batch.num_predictions
    )
    if batch.apart is None:
        return MaskedLMLoss(smoothed, plain, None)
    scores = model.next_sentence_logits(states, rows, noise).float()
    wrong = torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch.apart).to(scores.device))
    return MaskedLMLoss(smoothed + batch.num_predictions * wrong, plain, scores)


def evaluation_batches(stream: TokenStream, layout: MaskedRowLayout) -> Iterator[MaskedLMBatch]:
    """Yield the rows of a text with the same tokens hidden every time, as models are measured with them."""
    measured, size = layout.for_evaluation(), max(1, EVALUATED_TOKENS // stream.length)
    for first in range(0, len(stream), size):
        numbers = np.arange(first, min(first + size, len(stream)))
        yield measured.batch(stream, numbers, 0, seed=0, epoch=0)


@dataclass(frozen=True)
class MaskedLMScores:
    """How well a model tells the hidden tokens of a text."""

    loss: float  # a token, in nats
    count: int
    together: float | None  # share of pairs that were told right, in percent


@torch.inference_mode()
def masked_scores(model: Bert, text: TokenStream, layout: MaskedRowLayout) -> MaskedLMScores:
    """Measure a model on a text."""
    lost, count, right, pairs = 0.0, 0, 0, 0
    for batch in evaluation_batches(text, layout):
        told = masked_lm_loss(model, batch)
        lost, count = lost + float(told.unsmoothed), count + batch.num_predictions
        if told.scores is not None and batch.apart is not None:
            right += int((told.scores.argmax(1).cpu().numpy() == batch.apart).sum())
            pairs += len(batch.apart)
    return MaskedLMScores(lost / count, count, 100.0 * right / pairs if pairs else None)


def token_counts(text: TokenStream, size: int) -> NDArray[np.int64]:
    """Return how often each of `size` tokens occurs in a text."""
    return np.bincount(text.ids, minlength=size)


def read_token_counts(folder: Path, size: int) -> NDArray[np.int64] | None:
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


def unigram_loss(counts: NDArray[np.int64], text: TokenStream, layout: MaskedRowLayout) -> float:
    """Return what tokens told by nothing but their counts (plus one) lose at the same places, a token in nats.

    It is the least that a model must beat: it has learned which words are frequent and nothing of what stands around.
    """
    known = np.where(layout.masking.ordinary, counts + 1.0, 0.0)
    with np.errstate(divide="ignore"):
        losses = -np.log(known / known.sum())
    told = np.concatenate([losses[batch.targets] for batch in evaluation_batches(text, layout)])
    return float(told.mean())


@torch.inference_mode()
def top_tokens_at(model: Bert, rows: Tokens, positions: Numbers, k: int) -> tuple[Ids, NDArray[np.float32]]:
    """Return the k likeliest tokens at places of the rows laid end to end, likeliest first, and their probabilities."""
    states = torch.from_numpy(model.encode(rows)[positions]).to(model.device(), model.output_weight.dtype)
    hidden = model.masked_lm_hidden(states)
    logits = torch.nn.functional.linear(hidden, model.output_weight, model.output_bias).float()
    ids, chances = top_tokens(logits, min(k, logits.shape[1]))
    return ids.cpu().numpy().astype(np.int32), chances.exp().cpu().numpy()


@dataclass(frozen=True)
class FilledToken:
    """A token as it goes into a text."""

    text: str
    glued: bool  # whether it continues the word before

    @classmethod
    def of(cls, tokenizer: Tokenizer, number: int) -> FilledToken:
        """Return a token as people write it.

        >>> from regard.config.data import TokenizerConfig
        >>> from regard.text.train import train_wordpiece
        >>> tokenizer = train_wordpiece(["ab abab"] * 9, TokenizerConfig())
        >>> FilledToken.of(tokenizer, tokenizer.backend.token_to_id("##ab"))
        FilledToken(text='ab', glued=True)
        """
        piece = str(tokenizer.backend.id_to_token(number) or "")
        if piece.startswith(MORE) and len(piece) > len(MORE):
            return cls(piece.removeprefix(MORE), True)
        return cls(tokenizer.decode([number]).strip() or piece, False)

    def insert(self, before: str, after: str) -> str:
        """Return the text with the word between these parts of it."""
        return f"{before.rstrip() if self.glued else before}{self.text}{after}"


def mask_context(tokenizer: Tokenizer, ids: Sequence[int], position: int, mask_id: int, window: int = 12) -> str:
    """Return the words around a place as text, the mask token in the gap."""
    left, right = ids[max(0, position - window) : position], ids[position + 1 : position + 1 + window]
    name = str(tokenizer.backend.id_to_token(mask_id))
    return " ".join(filter(None, [tokenizer.decode(left).removeprefix(MORE), name, tokenizer.decode(right)]))
