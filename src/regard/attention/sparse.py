"""Attention whose cost and memory grow with the length of a row and not with its square.

In blocks (BigBird, Zaheer et al. 2020): who looks at whom is a mask over blocks, and keys of the blocks that are looked
at are gathered. Each row is computed alone, in its own length. Near (Beltagy et al. 2020): stretches of queries look at
the keys around them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from regard.attention.masks import BoundMask, Mask, blocks, global_tokens, padding, random, window

MIN_CHUNK_QUERIES = 64  # queries of a stretch
BLOCKS_PER_GATHER = 8  # blocks of queries whose keys are gathered at a time: few enough for a cache


Plain = Callable[[Tensor, Tensor, Tensor, BoundMask], Tensor]  # attention with a mask


def big_bird(random_blocks: int, seed: int = 0) -> Mask:
    """Return who looks at whom among blocks: neighbours, the first and the last one at all, and some drawn by a seed.

    >>> print(big_bird(2, seed=5))
    window(1) | global_tokens(0, -1) | random(2, seed=5)
    """
    near = window(1) | global_tokens(0, -1)
    return near | random(random_blocks, seed) if random_blocks else near


class BlockSparseMask(BoundMask):
    """A mask over blocks of rows that are longer than a threshold; in the others everybody looks at everybody.

    `repeats`: how many times more than once the first block's keys count, where blocks do not see all of their row.
    """

    def __init__(self, pattern: Mask, size: int, lengths: Tensor, *, longest_full: int = 0, repeats: int = 0) -> None:
        self.lengths = [int(length) for length in lengths.tolist()]
        slots = torch.arange(max(self.lengths, default=0), device=lengths.device)[None]
        super().__init__(blocks(pattern, size) & padding(lengths), slots, slots)
        self.pattern, self.size, self.longest_full, self.repeats = pattern, size, longest_full, repeats
        self._layouts: dict[int, Tensor] = {}

    def block_bias(self, length: int) -> Tensor | None:
        """Return what is added to the scores of a row, block by block, [n, n]: -∞ where a block does not look.

        Nothing for a row that is short enough to be looked at as a whole.
        """
        if length <= self.longest_full:
            return None
        count = -(-length // self.size)
        if count not in self._layouts:
            places = torch.arange(count, device=self.key.device)
            seen = self.pattern.allows(places[None, None, :, None], places[None, None, None, :], count)[0, 0]
            made = torch.zeros(count, count, device=self.key.device).masked_fill(~seen, -torch.inf)
            partly = ~seen.all(1)
            made[partly, 0] += math.log(1 + self.repeats)
            self._layouts[count] = made
        return self._layouts[count]

    @cached_property
    def _added(self) -> Tensor:
        """What is added to the scores of padded rows, [B, 1, T, T]: the plain kernels and the tap ask for it."""
        longest = self.key.shape[1]
        made = torch.full((len(self.lengths), 1, longest, longest), -torch.inf, device=self.key.device)
        for row, length in enumerate(self.lengths):
            layout = self.block_bias(length)
            wide: Tensor | float = 0.0
            if layout is not None:
                wide = layout.repeat_interleave(self.size, 0).repeat_interleave(self.size, 1)[:length, :length]
            made[row, 0, :length, :length] = wide
        return made

    @cached_property
    def dense(self) -> Tensor:
        """Where a query may look, [B, 1, T, T]."""
        return self._added > -torch.inf

    @cached_property
    def is_full(self) -> bool:
        """Whether every query may look everywhere; that would be no block mask."""
        return False

    def additive(self, dtype: torch.dtype) -> Tensor:
        """How often a key counts, as its logarithm, and the least number where one may not look, [B, 1, T, T]."""
        return self._added.to(dtype).clamp(min=torch.finfo(dtype).min)

    def select_queries(self, rows: slice | Tensor) -> BoundMask:
        """Return the mask of some of the queries."""
        return _BlockQueries(self, rows)


class _BlockQueries(BoundMask):
    """A block mask's view of some queries."""

    def __init__(self, whole: BlockSparseMask | _BlockQueries, rows: slice | Tensor) -> None:
        super().__init__(whole.mask, whole.query[:, rows], whole.key)
        self.whole, self.rows = whole, rows

    @cached_property
    def _added(self) -> Tensor:
        return self.whole._added[:, :, self.rows]

    @cached_property
    def dense(self) -> Tensor:
        return self._added > -torch.inf

    def additive(self, dtype: torch.dtype) -> Tensor:
        return self._added.to(dtype).clamp(min=torch.finfo(dtype).min)

    def select_queries(self, rows: slice | Tensor) -> BoundMask:
        return _BlockQueries(self, rows)


class LocalMask(BoundMask):
    """Everybody looks at what is at most `reach` slots away in its own row, of rows that begin at slot 0."""

    def __init__(self, reach: int, lengths: Tensor, max_length: int) -> None:
        slots = torch.arange(max_length, device=lengths.device)[None]
        super().__init__(padding(lengths) & window(reach), slots, slots)
        self.window = reach

    @cached_property
    def is_full(self) -> bool:
        """Whether every query may look everywhere."""
        return self.query.shape[1] <= self.window + 1 and bool(self.dense.all())

    @cached_property
    def chunks(self) -> list[tuple[slice, slice, BoundMask]]:
        """Stretches of queries, each with the keys that it needs and the mask between the two."""
        made, size = [], max(MIN_CHUNK_QUERIES, 2 * self.window)
        for first in range(0, self.query.shape[1], size):
            asking = slice(first, first + size)
            around = slice(max(0, first - self.window), first + size + self.window)
            made.append((asking, around, BoundMask(self.mask, self.query[:, asking], self.key[:, around])))
        return made


def attend_local(query: Tensor, key: Tensor, value: Tensor, mask: LocalMask, attend_dense: Plain) -> Tensor:
    """Return what `plain` attention does with the mask, [B, H, T, v], computed in stretches of the row."""
    made = [
        attend_dense(query[:, :, asking], key[:, :, around], value[:, :, around], part)
        for asking, around, part in mask.chunks
    ]
    return torch.cat(made, dim=2)


def attend_block_sparse(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockSparseMask
) -> Tensor:  # each [B, H, T, d]
    """Return what `attend` would with the mask's dense form, [B, H, T, v]; places after a row's end are zero."""
    made = []
    for row, length in enumerate(mask.lengths):
        own, keys, values = (part[row, :, :length] for part in (query, key, value))  # each [H, T, d]
        layout = mask.block_bias(length)
        mixed = _mixed(own, keys, values) if layout is None else _one_row(own, keys, values, layout, mask.size)
        made.append(functional.pad(mixed, (0, 0, 0, query.shape[2] - length)))
    return torch.stack(made)


def _mixed(query: Tensor, key: Tensor, value: Tensor, added: Tensor | None = None) -> Tensor:
    """Return plain attention over the last two dimensions; `added` broadcasts to the scores."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if added is not None:
        scores = scores + added.to(scores.dtype)
    return torch.softmax(scores, dim=-1) @ value


def _one_row(query: Tensor, key: Tensor, value: Tensor, layout: Tensor, size: int) -> Tensor:  # [H, T, d]
    count, length = len(layout), query.shape[1]
    spare = count * size - length
    queries, keys, values = (
        functional.pad(part, (0, 0, 0, spare)).unflatten(1, (count, size)) for part in (query, key, value)
    )  # each [H, n, S, d]
    filled = torch.zeros(count * size, device=query.device)
    filled[length:] = -torch.inf  # what was padded is not looked at
    filled = filled.view(count, size)
    seen = layout > -torch.inf
    everywhere, some = seen.all(1).nonzero()[:, 0], (~seen.all(1)).nonzero()[:, 0]
    made = []
    if len(everywhere):
        asking = queries[:, everywhere].flatten(1, 2)
        found = _mixed(asking, keys.flatten(1, 2), values.flatten(1, 2), filled.flatten())
        made.append(found.unflatten(1, (-1, size)))
    for chosen in some.split(BLOCKS_PER_GATHER) if len(some) else ():
        most = int(seen[chosen].sum(1).max())
        at = seen[chosen].int().argsort(dim=1, descending=True, stable=True)[:, :most]  # [m, K]
        added = layout[chosen].gather(1, at)[:, :, None] + filled[at]  # [m, K, S]
        near, told = (part[:, at].flatten(2, 3) for part in (keys, values))  # each [H, m, K·S, d]
        made.append(_mixed(queries[:, chosen], near, told, added.flatten(1)[:, None]))
    order = torch.cat([everywhere, some]).argsort()
    return torch.cat(made, dim=1)[:, order].flatten(1, 2)[:, :length]
