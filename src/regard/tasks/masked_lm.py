"""Masked language modelling: masked tokens of a row are predicted from all others (Devlin et al. 2019).

Every epoch masks other tokens: a pure function of seed, epoch and stream index. The module also holds the evaluation
with fixed masks, the unigram baseline, and what fill-mask shows: the most likely tokens at mask tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from regard.packed_tokens import Ids, Tokens
from regard.tasks.predictions import PredictedMaskedTokens
from regard.tasks.token_stream import Indices, StreamObjective, TokenStream, equal_rows
from regard.text.special_tokens import MASK_TOKENS, SpecialTokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import CONTINUATION_PREFIX

BoolArray = NDArray[np.bool_]
Uniforms = NDArray[np.float64]
TOKEN_MULTIPLE = 64  # the number of predictions is rounded up to a multiple: oneDNN caches few matmul shapes
EVALUATION_MASK_RATE = 0.15  # whatever the rate in training, so that evaluations are comparable
EVALUATION_TOKENS = 8192  # tokens of a batch in evaluations
TOKEN_COUNTS_FILE = "counts.json"  # file of a model folder: unigram counts of the training text
MASKING_PURPOSE = 4  # purposes of random numbers
PAIRING_PURPOSE = 5


@dataclass(frozen=True)
class TokenMasker:
    """Selects the tokens to mask and replaces them."""

    mask_id: int  # id of the mask token
    is_maskable: BoolArray  # [V], tokens that may be masked: all but special tokens
    continues_word: BoolArray  # [V], tokens that continue a word
    config: MaskingConfig

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, config: MaskingConfig) -> TokenMasker:
        """Masker for a tokenizer, which must have a mask token."""
        mask_id = SpecialTokens(tokenizer).mask_id
        if mask_id < 0:
            raise UsageError(
                f"the tokenizer has no mask token ({' or '.join(MASK_TOKENS)}): it is not for masked language modelling"
            )
        ordinary = np.ones(tokenizer.vocab_size, dtype=bool)
        ordinary[sorted(tokenizer.special_ids)] = False
        return cls(mask_id, ordinary, continues_word=continuation_tokens(tokenizer), config=config)

    def for_evaluation(self) -> TokenMasker:
        """Masker of evaluations: single tokens, each replaced by the mask token."""
        settings = {
            "mask_rate": EVALUATION_MASK_RATE,
            "mask_token_share": 1.0,
            "random_token_share": 0.0,
            "whole_word_masking": False,
        }
        return replace(self, config=self.config.override(settings))

    def mask_tokens(self, ids: Ids, uniforms: Uniforms) -> tuple[Ids, BoolArray]:  # [B, T], [3, B, T]
        """Mask tokens of each row, at least one word; return the rows, and which tokens are masked, [B, T].

        >>> from regard.text.train import train_wordpiece
        >>> from regard.config.data import TokenizerConfig
        >>> tokenizer = train_wordpiece(["one two three four"] * 9, TokenizerConfig())
        >>> config = MaskingConfig(mask_rate=0.5, mask_token_share=1.0, random_token_share=0.0)
        >>> rows = np.array([tokenizer.encode("one two three four").ids], dtype=np.int32)
        >>> uniforms = np.array([[[0.9, 0.2, 0.7, 0.1]]] * 3)
        >>> masked, is_masked = TokenMasker.from_tokenizer(tokenizer, config).mask_tokens(rows, uniforms)
        >>> tokenizer.subwords(masked[0]), is_masked[0].tolist()
        (['one', '[MASK]', 'three', '[MASK]'], [False, True, False, True])
        """
        is_masked = self._select_tokens(ids, uniforms[0])
        mask_share = self.config.mask_token_share
        random_share = self.config.random_token_share
        vocabulary = np.flatnonzero(self.is_maskable).astype(ids.dtype)
        random_ids = vocabulary[(uniforms[2] * len(vocabulary)).astype(np.int64)]
        replacements = np.where(uniforms[1] < mask_share + random_share, random_ids, ids)
        replacements[uniforms[1] < mask_share] = self.mask_id
        return np.where(is_masked, replacements, ids), is_masked

    def _select_tokens(self, ids: Ids, uniforms: Uniforms) -> BoolArray:
        """Select the tokens with the lowest uniforms, as many per row as the rate demands, at most a word fewer."""
        if self.config.whole_word_masking:
            is_continuation = self.continues_word[ids]
            is_continuation[:, 0] = False
            word_starts = np.where(is_continuation, 0, np.arange(ids.shape[1]))
            first_subwords = np.maximum.accumulate(word_starts, axis=1)
            uniforms = np.take_along_axis(uniforms, first_subwords, axis=1)  # a word shares that of its first subword
        ordinary = self.is_maskable[ids]
        uniforms = np.where(ordinary, uniforms, 2.0)
        num_masked = np.rint(self.config.mask_rate * ordinary.sum(1)).astype(np.int64)
        sorted_uniforms = np.sort(np.append(uniforms, np.full((len(ids), 1), 2.0), axis=1), axis=1)
        threshold = np.take_along_axis(sorted_uniforms, num_masked[:, None], axis=1)
        is_selected: BoolArray = ordinary & ((uniforms < threshold) | (uniforms == sorted_uniforms[:, :1]))
        return is_selected


def continuation_tokens(tokenizer: Tokenizer) -> BoolArray:
    """Which tokens continue a word, [V]: by ## if the vocabulary has it, else letters without a space before them.

    >>> from regard.text.train import train_masked_tokenizer
    >>> from regard.config.data import TokenizerConfig
    >>> tokenizer = train_masked_tokenizer(["ab, abab"] * 9, TokenizerConfig(kind="wordpiece"))
    >>> tokenizer.subwords(np.flatnonzero(continuation_tokens(tokenizer)).tolist())
    ['##a', '##b', '##ab']
    """
    subwords = tokenizer.subwords(range(tokenizer.vocab_size))
    is_marked = [_is_marked_continuation(subword) for subword in subwords]
    if any(is_marked):
        continues = np.array(is_marked, dtype=bool)
    else:
        continues = np.array([subword[:1].isalnum() for subword in subwords], dtype=bool)
    continues[sorted(tokenizer.special_ids)] = False
    return continues


def _is_marked_continuation(subword: str) -> bool:
    """Whether a WordPiece subword continues a word.

    >>> _is_marked_continuation("##ab"), _is_marked_continuation("##")
    (True, False)
    """
    return subword.startswith(CONTINUATION_PREFIX) and len(subword) > len(CONTINUATION_PREFIX)


@dataclass(frozen=True)
class MaskedLMBatch:
    """Rows with masked tokens, their token indices and ids; of pairs also the labels of next-sentence prediction."""

    rows: Tokens
    positions: Indices  # [M], token indices of the masked tokens
    targets: Indices  # [M]
    next_sentence_labels: Indices | None = None  # [B], 0: the second text follows the first, 1: it is a random one

    @property
    def num_predictions(self) -> int:
        """Number of masked tokens."""
        return len(self.targets)

    @property
    def description(self) -> str:
        """Size of the batch, as text."""
        return f"{len(self.rows)} rows of {self.rows.lengths.max()} tokens, {self.num_predictions} of them masked"


@dataclass(frozen=True)
class MaskedRowLayout:
    """Layout of rows: special tokens around one text, or around the two texts of a pair."""

    bos_id: int
    eos_id: int
    masker: TokenMasker
    has_pairs: bool

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, config: MaskingConfig) -> MaskedRowLayout:
        """Layout for a tokenizer."""
        return cls(
            tokenizer.bos_id,
            tokenizer.eos_id,
            masker=TokenMasker.from_tokenizer(tokenizer, config),
            has_pairs=config.next_sentence,
        )

    @property
    def num_special(self) -> int:
        """Number of special tokens of a row."""
        return 3 if self.has_pairs else 2

    def for_evaluation(self) -> MaskedRowLayout:
        """Layout of evaluations."""
        return replace(self, masker=self.masker.for_evaluation())

    def batch(self, stream: TokenStream, rows: Indices, offset: int, *, seed: int, epoch: int) -> MaskedLMBatch:
        """Rows of a stream by index, with masked tokens, in an epoch that starts at token `offset`."""

        def sample(indices: Indices, purpose: int) -> Uniforms:
            return position_uniforms(
                indices, seed=seed, epoch=epoch, digest=stream.digest, purpose=purpose, num_draws=3
            )

        indices = stream.indices(rows, offset)  # [B, T]
        split = np.full(len(indices), stream.length)  # [B], tokens of the first text
        labels = None
        if self.has_pairs:
            split, labels, ids = _sample_pairs(stream, indices, sample(indices[:, 0], PAIRING_PURPOSE))
        else:
            ids = stream.tokens_at(indices)
        masked, is_masked = self.masker.mask_tokens(ids, sample(indices, MASKING_PURPOSE))
        row_length = stream.length + self.num_special
        text_positions = np.arange(stream.length)
        positions = text_positions + 1 + (text_positions >= split[:, None])  # a special token follows the first text
        row_ids = np.full((len(ids), row_length), self.eos_id, dtype=np.int32)
        row_ids[:, 0] = self.bos_id
        np.put_along_axis(row_ids, positions, masked, axis=1)
        tokens = equal_rows(row_ids)
        if self.has_pairs:
            is_second = np.arange(row_length) > split[:, None] + 1
            tokens = replace(tokens, token_types=is_second.astype(np.int32).reshape(-1))
        token_indices = np.arange(len(ids))[:, None] * row_length + positions
        return MaskedLMBatch(
            tokens,
            token_indices[is_masked].astype(np.int64),
            targets=ids[is_masked].astype(np.int64),
            next_sentence_labels=labels,
        )


def _sample_pairs(stream: TokenStream, indices: Indices, uniforms: Uniforms) -> tuple[Indices, Indices, Ids]:
    """Split each row in two texts, half of the second ones random: split, next-sentence labels and token ids."""
    length = stream.length
    split = (length * (0.25 + 0.5 * uniforms[0])).astype(np.int64)  # between a quarter and three quarters of the row
    labels = (uniforms[1] < 0.5).astype(np.int64)
    max_distance = max(1, len(stream.ids) - 2 * length)
    distance = length + (uniforms[2] * max_distance).astype(np.int64)  # at least one row away
    is_moved = (np.arange(length) >= split[:, None]) & (labels[:, None] == 1)
    return split, labels, stream.tokens_at(indices + np.where(is_moved, distance[:, None], 0))


class MaskedLMObjective(StreamObjective):
    """Cross-entropy of masked tokens, with next-sentence prediction where the layout has pairs."""

    def __init__(self, train: TokenStream, layout: MaskedRowLayout, *, seed: int) -> None:
        super().__init__(train, seed=seed)
        self.layout = layout

    def batch(self, indices: Indices, epoch: int) -> MaskedLMBatch:
        """Training rows with the offset and the masks of this epoch."""
        return self.layout.batch(self.train, indices, self.epoch_offset(epoch), seed=self.seed, epoch=epoch)

    def loss(self, model: Bert, batch: MaskedLMBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and the plain loss over masked tokens.

        The smoothed one includes next-sentence prediction: its mean loss counts as much as the mean over tokens.
        """
        loss = masked_lm_loss(model, batch, smoothing, noise)
        return loss.smoothed, loss.unsmoothed


@dataclass(frozen=True)
class MaskedLMLoss:
    """Loss of a batch."""

    smoothed: Tensor  # to minimise
    unsmoothed: Tensor  # of the masked tokens only
    next_sentence_logits: Tensor | None  # [B, 2]


def masked_lm_loss(
    model: Bert, batch: MaskedLMBatch, smoothing: float = 0.0, noise: Noise | None = None
) -> MaskedLMLoss:
    """Loss of masked tokens and of next-sentence prediction; only masked tokens are projected to the vocabulary."""
    ids, packed = model.to_tensors(batch.rows)
    selected = SelectedTokens(packed, batch.positions, TOKEN_MULTIPLE)
    token_types = model.token_type_tensor(batch.rows, packed.num_padding)
    if batch.next_sentence_labels is None:
        hidden = model(ids, packed, token_types, noise, selected)
        masked_hidden = hidden  # [M, D]
    else:  # next-sentence prediction needs the first tokens, too
        hidden = model(ids, packed, token_types, noise)  # [N, D]
        masked_hidden = hidden.index_select(0, selected.indices)
    transformed = model.masked_lm_hidden(masked_hidden)
    padded_targets = np.append(batch.targets, np.zeros(selected.num_padding, dtype=np.int64))
    targets = torch.from_numpy(padded_targets).to(transformed.device)
    smoothed, unsmoothed = vocabulary_loss(
        transformed, model.output_weight, model.output_bias, targets, smoothing, num_targets=batch.num_predictions
    )
    if batch.next_sentence_labels is None:
        return MaskedLMLoss(smoothed, unsmoothed, next_sentence_logits=None)
    logits = model.next_sentence_logits(hidden, packed, noise).float()
    labels = torch.from_numpy(batch.next_sentence_labels).to(logits.device)
    next_sentence_loss = torch.nn.functional.cross_entropy(logits, labels)
    smoothed = smoothed + batch.num_predictions * next_sentence_loss
    return MaskedLMLoss(smoothed, unsmoothed, next_sentence_logits=logits)


def evaluation_batches(stream: TokenStream, layout: MaskedRowLayout) -> Iterator[MaskedLMBatch]:
    """Yield all rows of a stream with fixed masks."""
    evaluation_layout = layout.for_evaluation()
    batch_size = max(1, EVALUATION_TOKENS // stream.length)
    for start in range(0, len(stream), batch_size):
        rows = np.arange(start, min(start + batch_size, len(stream)))
        yield evaluation_layout.batch(stream, rows, 0, seed=0, epoch=0)


@torch.inference_mode()
def predict_masked_tokens(
    model: Bert, stream: TokenStream, layout: MaskedRowLayout, *, unigram_loss: float | None = None
) -> PredictedMaskedTokens:
    """Predict the masked tokens of a stream; `unigram_loss` is that of the baseline at the same masks."""
    total = 0.0
    num_correct = 0
    num_pairs = 0
    targets = []
    for batch in evaluation_batches(stream, layout):
        loss = masked_lm_loss(model, batch)
        total += float(loss.unsmoothed)
        targets.append(batch.targets)
        if loss.next_sentence_logits is not None and batch.next_sentence_labels is not None:
            predictions = loss.next_sentence_logits.argmax(1).cpu().numpy()
            num_correct += int((predictions == batch.next_sentence_labels).sum())
            num_pairs += len(batch.next_sentence_labels)
    references = np.concatenate(targets)
    return PredictedMaskedTokens(
        loss=total / len(references),
        references=references,
        predict=partial(most_probable_tokens, model, stream, layout),
        unigram_loss=unigram_loss,
        next_sentence_accuracy=100.0 * num_correct / num_pairs if num_pairs else None,
    )


@torch.inference_mode()
def most_probable_tokens(model: Bert, stream: TokenStream, layout: MaskedRowLayout) -> Indices:
    """Most probable token at each mask of an evaluation."""
    ids = [
        top_tokens_at(model, batch.rows, batch.positions, 1)[0][:, 0] for batch in evaluation_batches(stream, layout)
    ]
    return np.concatenate(ids).astype(np.int64)


def token_counts(stream: TokenStream, vocab_size: int) -> NDArray[np.int64]:
    """Number of occurrences of each token in a stream, [V]."""
    return np.bincount(stream.ids, minlength=vocab_size)


def read_token_counts(folder: Path, vocab_size: int) -> NDArray[np.int64] | None:
    """Read the unigram counts of a model folder; None for folders of other libraries, which have none."""
    path = folder / TOKEN_COUNTS_FILE
    try:
        counts = np.array(json.loads(path.read_text("utf-8")), dtype=np.int64)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"{path}: not a list of counts: {error}") from None
    if counts.shape != (vocab_size,) or (counts < 0).any():
        raise CheckpointError(f"{path}: {vocab_size} counts are needed, one for each token")
    return counts


def unigram_loss(counts: NDArray[np.int64], stream: TokenStream, layout: MaskedRowLayout) -> float:
    """Loss of the unigram baseline at the masks of evaluations, in nats per token; counts are smoothed by one.

    A model that does not beat it has learned which tokens are frequent, and nothing of their context.
    """
    smoothed_counts = np.where(layout.masker.is_maskable, counts + 1.0, 0.0)
    with np.errstate(divide="ignore"):
        token_losses = -np.log(smoothed_counts / smoothed_counts.sum())
    losses = np.concatenate([token_losses[batch.targets] for batch in evaluation_batches(stream, layout)])
    return float(losses.mean())


@torch.inference_mode()
def top_tokens_at(model: Bert, rows: Tokens, positions: Indices, k: int) -> tuple[Ids, NDArray[np.float32]]:
    """The k most likely tokens at token indices of the packed rows, most likely first, with their probabilities."""
    hidden = torch.from_numpy(model.encode(rows)[positions]).to(model.device(), model.output_weight.dtype)
    transformed = model.masked_lm_hidden(hidden)
    logits = torch.nn.functional.linear(transformed, model.output_weight, model.output_bias).float()
    ids, logprobs = top_tokens(logits, min(k, logits.shape[1]))
    return ids.cpu().numpy().astype(np.int32), logprobs.exp().cpu().numpy()


@dataclass(frozen=True)
class FilledToken:
    """A predicted token as text."""

    text: str
    is_continuation: bool  # whether it continues the word before

    @classmethod
    def from_id(cls, tokenizer: Tokenizer, token_id: int) -> FilledToken:
        """Text of a token.

        >>> from regard.config.data import TokenizerConfig
        >>> from regard.text.train import train_wordpiece
        >>> tokenizer = train_wordpiece(["ab abab"] * 9, TokenizerConfig())
        >>> FilledToken.from_id(tokenizer, tokenizer.backend.token_to_id("##ab"))
        FilledToken(text='ab', is_continuation=True)
        """
        subword = str(tokenizer.backend.id_to_token(token_id) or "")
        if _is_marked_continuation(subword):
            return cls(subword.removeprefix(CONTINUATION_PREFIX), is_continuation=True)
        return cls(tokenizer.decode([token_id]).strip() or subword, is_continuation=False)

    def insert(self, before: str, after: str) -> str:
        """Text with this token between `before` and `after`."""
        return f"{before.rstrip() if self.is_continuation else before}{self.text}{after}"


def mask_context(tokenizer: Tokenizer, ids: Sequence[int], position: int, mask_id: int, window: int = 12) -> str:
    """Text of up to `window` tokens on each side of a position, with the mask token between them."""
    before = tokenizer.decode(ids[max(0, position - window) : position]).removeprefix(CONTINUATION_PREFIX)
    mask_token = str(tokenizer.backend.id_to_token(mask_id))
    after = tokenizer.decode(ids[position + 1 : position + 1 + window])
    return " ".join(filter(None, [before, mask_token, after]))
