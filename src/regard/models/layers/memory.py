"""Memory network layers: sentences as sums of word embeddings, and hops over them (Sukhbaatar et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from regard.attention.attend import attend
from regard.attention.masks import BoundMask, Mask
from regard.attention.scores import Dot, Normalize
from regard.packed_tokens import Tokens

DOT = Dot()


def position_encoding_factors(width: int, max_words: int) -> tuple[Tensor, Tensor]:
    """Factors a [d] and b [J] of position encoding: dimension k of word j has the weight 1 + a_k b_j (section 4.1).

    The published weight 1 + 4 (k - (d + 1) / 2) (j - (J + 1) / 2) / (d J) is one plus a product, so a sentence is one
    plain and one weighted sum of its word embeddings.

    >>> a, b = position_encoding_factors(3, 2)
    >>> [[round(float(1 + k * j), 4) for j in b] for k in a]
    [[1.3333, 0.6667], [1.0, 1.0], [0.6667, 1.3333]]
    """
    dimensions = torch.arange(1, width + 1, dtype=torch.float64, device="cpu")
    positions = torch.arange(1, max_words + 1, dtype=torch.float64, device="cpu")
    a = 2 * (dimensions - (width + 1) / 2) / width
    b = 2 * (positions - (max_words + 1) / 2) / max_words
    return a.float(), b.float()


class BagOfWords:
    """Sentences as weighted bags of words: a sparse matrix [rows, words], stored by row and by word.

    >>> bags = BagOfWords(Tokens.from_rows([[0, 1], [1]]), np.array([0, 3, 5], dtype=np.float32), vocab_size=2)
    >>> table = torch.tensor([[1.0], [10.0]])
    >>> bags.matmul(table).tolist(), bags.matmul(table, dimension_factors=torch.tensor([2.0])).tolist()
    ([[11.0], [10.0]], [[71.0], [110.0]])
    """

    def __init__(
        self, words: Tokens, weights: NDArray[np.float32], vocab_size: int, device: torch.device | str = "cpu"
    ) -> None:
        order = np.argsort(words.ids, kind="stable")
        rows = np.repeat(np.arange(len(words)), words.lengths)
        word_offsets = np.searchsorted(words.ids[order], np.arange(vocab_size + 1))
        self.by_row = _SparseRows(words.ids, words.offsets, weights, device)
        self.by_word = _SparseRows(rows[order], word_offsets, weights[order], device)

    def matmul(self, table: Tensor, dimension_factors: Tensor | None = None) -> Tensor:
        """Sum of the embeddings of each row's words, [words, …, d] → [rows, …, d].

        With `dimension_factors` [d], dimension k of a word counts 1 + factor_k · weight of the word; otherwise 1.
        """
        return _SparseMatmul.apply(table, dimension_factors, self)


class _SparseRows:
    """A sparse matrix stored by rows: its product with a table sums a few of the table's rows for each row."""

    def __init__(self, ids: Any, offsets: Any, weights: NDArray[np.float32], device: torch.device | str) -> None:
        self.ids = torch.from_numpy(ids.astype(np.int64)).to(device)
        self.offsets = torch.from_numpy(offsets.astype(np.int64)).to(device)
        self.weights = torch.from_numpy(weights).to(device)

    def __call__(self, table: Tensor, dimension_factors: Tensor | None) -> Tensor:
        flat = table.reshape(len(table), -1)
        plain = embedding_bag(self.ids, flat, self.offsets, mode="sum", include_last_offset=True)
        summed = plain.view(-1, *table.shape[1:])
        if dimension_factors is None:
            return summed
        weighted = embedding_bag(
            self.ids, flat, self.offsets, mode="sum", per_sample_weights=self.weights, include_last_offset=True
        )
        return summed.addcmul_(weighted.view_as(summed), dimension_factors)


class _SparseMatmul(torch.autograd.Function):
    """Sparse matrix · table; the gradient is the product with the transposed matrix, which is stored, too."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, dimension_factors: Tensor | None, bags: BagOfWords) -> Tensor:
        ctx.dimension_factors = dimension_factors
        ctx.bags = bags
        return bags.by_row(table, dimension_factors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.bags.by_word(gradients[0].contiguous(), ctx.dimension_factors), None, None


@dataclass(frozen=True, eq=False)
class StoryMask(Mask):
    """A question attends to the sentences of its own story, and to memories that all stories share."""

    question_indices: Tensor  # [N], the question that each sentence belongs to; -1: shared

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        question_indices = self.question_indices[key]
        return (question_indices == query) | (question_indices < 0)

    def __str__(self) -> str:
        return "story()"


def story_mask(
    sentence_counts: NDArray[np.int64], *, num_shared: int = 0, device: torch.device | str = "cpu"
) -> BoundMask:
    """Mask from questions to the sentences of all stories, laid end to end, with `num_shared` memories at the end.

    >>> story_mask(np.array([2, 1]), num_shared=1).dense[0, 0].int().tolist()
    [[1, 1, 0, 1], [0, 0, 1, 1]]
    """
    question_indices = np.repeat(np.arange(len(sentence_counts)), sentence_counts)
    question_indices = np.append(question_indices, np.full(num_shared, -1))
    sentences = torch.arange(len(question_indices), device=device)[None]
    questions = torch.arange(len(sentence_counts), device=device)[None]
    return StoryMask(torch.from_numpy(question_indices).to(device)).bind(questions, sentences)


def memory_hop(
    state: Tensor,  # [1, M, B, d]
    key: Tensor,  # [N, M, d]
    value: Tensor,  # [N, M, d]
    *,
    mask: BoundMask,
    bias: Tensor | None,  # [1, 1, B, N]
    normalize: Normalize,
    site: str,
) -> Tensor:
    """Attention of each question over its memory, [1, M, B, d]; the M networks are its heads."""
    keys = key.transpose(0, 1)[None]  # [1, M, N, d]
    values = value.transpose(0, 1)[None]
    return attend(state, keys, values, mask=mask, bias=bias, score=DOT, normalize=normalize, site=site)
