"""Attention whose cost and memory grow linearly with the sequence length.

Block-sparse attention (BigBird, Zaheer et al. 2020): a mask over blocks of positions selects the key blocks that each
query block gathers; every sequence is computed on its own, at its own length. Local attention (Beltagy et al. 2020):
chunks of queries attend to the keys around them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from regard.attention.dropout import Noise, apply_dropout
from regard.attention.masks import BoundMask, Mask, blocks, global_tokens, padding, random, window

MIN_CHUNK_QUERIES = 64  # queries of a chunk of local attention
BLOCKS_PER_GATHER = 8  # query blocks whose keys are gathered at a time: few enough for the processor's cache


AttendDense = Callable[[Tensor, Tensor, Tensor, BoundMask], Tensor]  # attention with a dense mask


def big_bird(random_blocks: int, seed: int = 0) -> Mask:
    """BigBird's mask over blocks: neighbours, global first and last block, and pseudo-random blocks.

    >>> print(big_bird(2, seed=5))
    window(1) | global_tokens(0, -1) | random(2, seed=5)
    """
    pattern = window(1) | global_tokens(0, -1)
    return pattern | random(random_blocks, seed) if random_blocks else pattern


class BlockSparseMask(BoundMask):
    """A mask over blocks of sequences longer than `max_full_length`; shorter sequences have full attention.

    `extra_first_block`: how many more times the keys of the first block count for query blocks that do not attend to
    their whole sequence.
    """

    def __init__(
        self, pattern: Mask, size: int, lengths: Tensor, *, max_full_length: int = 0, extra_first_block: int = 0
    ) -> None:
        self.lengths = [int(length) for length in lengths.tolist()]
        positions = torch.arange(max(self.lengths, default=0), device=lengths.device)[None]
        super().__init__(blocks(pattern, size) & padding(lengths), positions, positions)
        self.pattern = pattern
        self.size = size
        self.max_full_length = max_full_length
        self.extra_first_block = extra_first_block
        self._block_biases: dict[int, Tensor] = {}

    def block_bias(self, length: int) -> Tensor | None:
        """Additive mask of a sequence by blocks, [blocks, blocks], -∞ at masked blocks; None for full attention."""
        if length <= self.max_full_length:
            return None
        num_blocks = -(-length // self.size)
        if num_blocks not in self._block_biases:
            block_indices = torch.arange(num_blocks, device=self.key.device)
            query_blocks = block_indices[None, None, :, None]
            key_blocks = block_indices[None, None, None, :]
            allowed = self.pattern.allows(query_blocks, key_blocks, num_blocks)[0, 0]
            bias = torch.zeros(num_blocks, num_blocks, device=self.key.device).masked_fill(~allowed, -torch.inf)
            is_partial = ~allowed.all(1)
            bias[is_partial, 0] += math.log(1 + self.extra_first_block)
            self._block_biases[num_blocks] = bias
        return self._block_biases[num_blocks]

    @cached_property
    def _dense_bias(self) -> Tensor:
        """Additive mask of the padded batch, [B, 1, T, T]; only dense kernels and captures need it."""
        max_length = self.key.shape[1]
        dense_bias = torch.full((len(self.lengths), 1, max_length, max_length), -torch.inf, device=self.key.device)
        for row, length in enumerate(self.lengths):
            block_bias = self.block_bias(length)
            row_bias: Tensor | float = 0.0
            if block_bias is not None:
                row_bias = block_bias.repeat_interleave(self.size, 0).repeat_interleave(self.size, 1)[:length, :length]
            dense_bias[row, 0, :length, :length] = row_bias
        return dense_bias

    @cached_property
    def dense(self) -> Tensor:
        """Boolean mask, [B, 1, T, T]."""
        return self._dense_bias > -torch.inf

    @cached_property
    def is_full(self) -> bool:
        """Always false: a full mask needs no blocks."""
        return False

    def additive(self, dtype: torch.dtype) -> Tensor:
        """Log-multiplicity of each key, the smallest finite number at masked keys, [B, 1, T, T]."""
        return self._dense_bias.to(dtype).clamp(min=torch.finfo(dtype).min)

    def select_queries(self, rows: slice | Tensor) -> BoundMask:
        """The mask restricted to these queries."""
        return _BlockQueries(self, rows)


class _BlockQueries(BoundMask):
    """A block-sparse mask restricted to some queries."""

    def __init__(self, parent: BlockSparseMask | _BlockQueries, rows: slice | Tensor) -> None:
        super().__init__(parent.mask, parent.query[:, rows], parent.key)
        self.parent = parent
        self.rows = rows

    @cached_property
    def _dense_bias(self) -> Tensor:
        return self.parent._dense_bias[:, :, self.rows]

    @cached_property
    def dense(self) -> Tensor:
        return self._dense_bias > -torch.inf

    def additive(self, dtype: torch.dtype) -> Tensor:
        return self._dense_bias.to(dtype).clamp(min=torch.finfo(dtype).min)

    def select_queries(self, rows: slice | Tensor) -> BoundMask:
        return _BlockQueries(self, rows)


class LocalMask(BoundMask):
    """Sliding window: a token attends to at most `window_size` tokens on either side, in sequences from position 0."""

    def __init__(self, window_size: int, lengths: Tensor, max_length: int) -> None:
        positions = torch.arange(max_length, device=lengths.device)[None]
        super().__init__(padding(lengths) & window(window_size), positions, positions)
        self.window = window_size

    @cached_property
    def is_full(self) -> bool:
        """Whether every query may attend to every key."""
        return self.query.shape[1] <= self.window + 1 and bool(self.dense.all())

    @cached_property
    def chunks(self) -> list[tuple[slice, slice, BoundMask]]:
        """Chunks of queries, each with the range of its keys and the mask between the two."""
        chunks = []
        chunk_size = max(MIN_CHUNK_QUERIES, 2 * self.window)
        for start in range(0, self.query.shape[1], chunk_size):
            queries = slice(start, start + chunk_size)
            keys = slice(max(0, start - self.window), start + chunk_size + self.window)
            chunks.append((queries, keys, BoundMask(self.mask, self.query[:, queries], self.key[:, keys])))
        return chunks


def attend_local(query: Tensor, key: Tensor, value: Tensor, mask: LocalMask, attend_dense: AttendDense) -> Tensor:
    """Sliding-window attention, [B, H, T, v], computed by `attend_dense` in chunks of queries."""
    contexts = [
        attend_dense(query[:, :, queries], key[:, :, keys], value[:, :, keys], chunk_mask)
        for queries, keys, chunk_mask in mask.chunks
    ]
    return torch.cat(contexts, dim=2)


@dataclass(frozen=True)
class WeightDropout:
    """Dropout of the attention weights of a site, which are computed in parts; none without noise."""

    rate: float
    noise: Noise | None
    site: str

    def __call__(self, weights: Tensor) -> Tensor:
        """Apply dropout to the weights."""
        return apply_dropout(weights, self.rate, self.noise, self.site)

    def part(self, name: str) -> WeightDropout:
        """Dropout of one part of the weights, with random numbers of its own."""
        return replace(self, site=f"{self.site}/{name}")


def attend_block_sparse(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockSparseMask, dropout: WeightDropout
) -> Tensor:  # each [B, H, T, d]
    """Block-sparse attention, equal to dense attention with the same mask, [B, H, T, v]; zeros at padding."""
    contexts = []
    for row, length in enumerate(mask.lengths):
        row_query = query[row, :, :length]  # [H, T, d]
        row_key = key[row, :, :length]
        row_value = value[row, :, :length]
        block_bias = mask.block_bias(length)
        if block_bias is None:
            context = _attend_full(row_query, row_key, row_value, dropout.part(f"{row}"))
        else:
            context = _attend_blocks(
                row_query, row_key, row_value, block_bias, size=mask.size, dropout=dropout.part(f"{row}")
            )
        contexts.append(functional.pad(context, (0, 0, 0, query.shape[2] - length)))
    return torch.stack(contexts)


def _attend_full(
    query: Tensor, key: Tensor, value: Tensor, dropout: WeightDropout, bias: Tensor | None = None
) -> Tensor:
    """Scaled dot-product attention over the last two axes; `bias` broadcasts to the scores."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    return dropout(torch.softmax(scores, dim=-1)) @ value


def _attend_blocks(
    query: Tensor, key: Tensor, value: Tensor, block_bias: Tensor, *, size: int, dropout: WeightDropout
) -> Tensor:  # [H, T, d]
    """Block-sparse attention of one sequence: global query blocks at once, the others in groups."""
    num_blocks = len(block_bias)
    length = query.shape[1]
    queries = _split_blocks(query, num_blocks, size)  # [H, n, S, d]
    keys = _split_blocks(key, num_blocks, size)
    values = _split_blocks(value, num_blocks, size)
    padding_bias = torch.zeros(num_blocks * size, device=query.device)
    padding_bias[length:] = -torch.inf
    padding_bias = padding_bias.view(num_blocks, size)
    allowed = block_bias > -torch.inf
    global_blocks = allowed.all(1).nonzero()[:, 0]
    sparse_blocks = (~allowed.all(1)).nonzero()[:, 0]
    contexts = []
    if len(global_blocks):
        global_queries = queries[:, global_blocks].flatten(1, 2)
        context = _attend_full(
            global_queries,
            keys.flatten(1, 2),
            values.flatten(1, 2),
            dropout.part("global"),
            padding_bias.flatten(),
        )
        contexts.append(context.unflatten(1, (-1, size)))
    groups = sparse_blocks.split(BLOCKS_PER_GATHER) if len(sparse_blocks) else ()
    for group_index, group in enumerate(groups):
        max_key_blocks = int(allowed[group].sum(1).max())
        by_allowed = allowed[group].int().argsort(dim=1, descending=True, stable=True)
        key_blocks = by_allowed[:, :max_key_blocks]  # [m, K]
        bias = block_bias[group].gather(1, key_blocks)[:, :, None] + padding_bias[key_blocks]  # [m, K, S]
        group_keys = keys[:, key_blocks].flatten(2, 3)  # [H, m, K·S, d]
        group_values = values[:, key_blocks].flatten(2, 3)
        group_dropout = dropout.part(f"{group_index}")
        contexts.append(
            _attend_full(queries[:, group], group_keys, group_values, group_dropout, bias.flatten(1)[:, None])
        )
    order = torch.cat([global_blocks, sparse_blocks]).argsort()
    return torch.cat(contexts, dim=1)[:, order].flatten(1, 2)[:, :length]


def _split_blocks(heads: Tensor, num_blocks: int, size: int) -> Tensor:
    """Pad a sequence [H, T, d] to whole blocks, [H, n, S, d]."""
    padded = functional.pad(heads, (0, 0, 0, num_blocks * size - heads.shape[1]))
    return padded.unflatten(1, (num_blocks, size))
