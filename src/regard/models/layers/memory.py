"""Sentences as sums of words, and hops over a memory of them (Sukhbaatar et al. 2015, sections 2 and 4.1)."""

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
from regard.tokens import Tokens

DOT = Dot()


def position_encoding_factors(width: int, max_words: int) -> tuple[Tensor, Tensor]:
    """Return the factors a [d] and b [J] of position encoding: entry k of word j weighs 1 + a_k b_j (section 4.1).

    The published weight 1 + 4 (k - (d + 1) / 2) (j - (J + 1) / 2) / (d J) is one plus a product, so a sentence is one
    plain and one weighted sum of its words.

    >>> a, b = position_encoding_factors(3, 2)
    >>> [[round(float(1 + k * j), 4) for j in b] for k in a]
    [[1.3333, 0.6667], [1.0, 1.0], [0.6667, 1.3333]]
    """
    entries = torch.arange(1, width + 1, dtype=torch.float64, device="cpu")
    places = torch.arange(1, max_words + 1, dtype=torch.float64, device="cpu")
    a = 2 * (entries - (width + 1) / 2) / width
    b = 2 * (places - (max_words + 1) / 2) / max_words
    return a.float(), b.float()


class BagOfWords:
    """Rows of weighted words: a sparse matrix [rows, words], laid out by row and by word.

    >>> bags = BagOfWords(Tokens.from_rows([[0, 1], [1]]), np.array([0, 3, 5], dtype=np.float32), size=2)
    >>> table = torch.tensor([[1.0], [10.0]])
    >>> bags.matmul(table).tolist(), bags.matmul(table, position_factors=torch.tensor([2.0])).tolist()
    ([[11.0], [10.0]], [[71.0], [110.0]])
    """

    def __init__(self, words: Tokens, weights: NDArray[np.float32], size: int, device: torch.device | str = "cpu"):
        order = np.argsort(words.ids, kind="stable")
        rows = np.repeat(np.arange(len(words)), words.lengths)
        starts = np.searchsorted(words.ids[order], np.arange(size + 1))
        self.by_row = _SparseRows(words.ids, words.offsets, weights, device)
        self.by_word = _SparseRows(rows[order], starts, weights[order], device)

    def matmul(self, table: Tensor, position_factors: Tensor | None = None) -> Tensor:
        """Return the sum of each row's words in a table [words, …, d], [rows, …, d].

        An entry of a word counts once; with `tilt` [d] it counts 1 + its tilt times the word's weight.
        """
        return _SparseMatmul.apply(table, position_factors, self)


class _SparseRows:
    """One layout of a sparse matrix: its product with a table adds a few of the table's rows for each row."""

    def __init__(self, ids: Any, offsets: Any, weights: NDArray[np.float32], device: torch.device | str) -> None:
        self.ids = torch.from_numpy(ids.astype(np.int64)).to(device)
        self.offsets = torch.from_numpy(offsets.astype(np.int64)).to(device)
        self.weights = torch.from_numpy(weights).to(device)

    def __call__(self, table: Tensor, tilt: Tensor | None) -> Tensor:
        flat = table.reshape(len(table), -1)
        plain = embedding_bag(self.ids, flat, self.offsets, mode="sum", include_last_offset=True)
        summed = plain.view(-1, *table.shape[1:])
        if tilt is None:
            return summed
        weighted = embedding_bag(
            self.ids, flat, self.offsets, mode="sum", per_sample_weights=self.weights, include_last_offset=True
        )
        return summed.addcmul_(weighted.view_as(summed), tilt)


class _SparseMatmul(torch.autograd.Function):
    """Table → sums of its rows; the gradient is a sum the other way round, as quick as the sum itself."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tilt: Tensor | None, bags: BagOfWords) -> Tensor:
        ctx.tilt, ctx.bags = tilt, bags
        return bags.by_row(table, tilt)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.bags.by_word(gradients[0].contiguous(), ctx.tilt), None, None


@dataclass(frozen=True, eq=False)
class StoryMask(Mask):
    """A question looks at the sentences of its own story, and at a memory that belongs to all."""

    owner: Tensor  # [N], the question that each sentence was told for; -1: everybody's

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        owner = self.owner[key]
        return (owner == query) | (owner < 0)

    def __str__(self) -> str:
        return "story()"


def story_mask(counts: NDArray[np.int64], *, num_shared: int = 0, device: torch.device | str = "cpu") -> BoundMask:
    """Return where questions may look among the sentences of all stories end to end, with `shared` ones at the end.

    >>> story_mask(np.array([2, 1]), num_shared=1).dense[0, 0].int().tolist()
    [[1, 1, 0, 1], [0, 0, 1, 1]]
    """
    owner = np.append(np.repeat(np.arange(len(counts)), counts), np.full(num_shared, -1))
    slots = torch.arange(len(owner), device=device)[None]
    questions = torch.arange(len(counts), device=device)[None]
    return StoryMask(torch.from_numpy(owner).to(device)).bind(questions, slots)


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
    """Return what each question finds in its memory, [1, M, B, d]; M networks stand where heads do elsewhere."""
    keys, values = key.transpose(0, 1)[None], value.transpose(0, 1)[None]  # [1, M, N, d]
    return attend(state, keys, values, mask=mask, bias=bias, score=DOT, normalize=normalize, site=site)
