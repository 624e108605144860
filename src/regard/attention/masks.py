"""Who may look at whom: a printable expression, placed once per forward and shared by all layers.

Masks are true where a query may look. A mask reads *slots*: where a query or key stands in its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.errors import UsageError


class Mask:
    """An expression that says which key slots a query slot may look at; combine with `&`, `|` and `~`.

    >>> print(causal() & ~window(0))
    causal() & ~window(0)
    """

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        """Return a Boolean [B|1, 1, Q, K] for slots [B|1, 1, Q, 1] and [B|1, 1, 1, K] in rows of `size` keys."""
        raise NotImplementedError

    def bind(self, query: Tensor, key: Tensor) -> BoundMask:
        """Return the mask at the given slots, [B|1, Q] and [B|1, K]."""
        return BoundMask(self, query, key)

    def __and__(self, other: Mask) -> Mask:
        return And(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other)

    def __invert__(self) -> Mask:
        return Not(self)


@dataclass(frozen=True)
class And(Mask):
    """Both masks allow it."""

    left: Mask
    right: Mask

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return self.left.allows(query, key, size) & self.right.allows(query, key, size)

    def __str__(self) -> str:
        return f"{_bracketed(self.left, Or)} & {_bracketed(self.right, Or)}"


@dataclass(frozen=True)
class Or(Mask):
    """One of the masks allows it."""

    left: Mask
    right: Mask

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return self.left.allows(query, key, size) | self.right.allows(query, key, size)

    def __str__(self) -> str:
        return f"{self.left} | {self.right}"


@dataclass(frozen=True)
class Not(Mask):
    """The mask does not allow it."""

    inner: Mask

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return ~self.inner.allows(query, key, size)

    def __str__(self) -> str:
        return f"~{_bracketed(self.inner, (And, Or))}"


def _bracketed(mask: Mask, kinds: type | tuple[type, ...]) -> str:
    return f"({mask})" if isinstance(mask, kinds) else str(mask)


@dataclass(frozen=True)
class Causal(Mask):
    """Nobody looks ahead."""

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return key <= query

    def __str__(self) -> str:
        return "causal()"


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Nobody looks past the end of a row."""

    lengths: Tensor  # [B]

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return (key < self.lengths.view(-1, 1, 1, 1)) & (query == query)

    def __str__(self) -> str:
        return "padding()"


@dataclass(frozen=True)
class Window(Mask):
    """Everybody looks at most `reach` slots to either side."""

    size: int

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return (query - key).abs() <= self.size

    def __str__(self) -> str:
        return f"window({self.size})"


@dataclass(frozen=True)
class Global(Mask):
    """The chosen slots look at all and are looked at by all; negative ones count from the end."""

    positions: tuple[int, ...]

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        chosen = torch.tensor([slot % size for slot in self.positions], device=key.device)
        return torch.isin(query, chosen) | torch.isin(key, chosen)

    def __str__(self) -> str:
        return f"global_tokens({', '.join(map(str, self.positions))})"


@dataclass(frozen=True)
class Random(Mask):
    """Each query looks at `count` keys drawn by the seed: the same ones wherever the row is computed."""

    num_blocks: int
    seed: int

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        rows = query.reshape(-1).unique()
        keys = torch.arange(size, device=key.device)
        mixed = (rows.view(-1, 1) * 2_654_435_761 + keys * 40_503 + self.seed * 97) & 0x7FFFFFFF
        for _ in range(2):  # a small integer hash: multiply, fold, multiply
            mixed = ((mixed ^ (mixed >> 15)) * 739_982_445 + 12_345) & 0x7FFFFFFF
        drawn = torch.zeros_like(mixed, dtype=torch.bool)
        drawn.scatter_(1, mixed.topk(min(self.num_blocks, size), dim=1, largest=False).indices, True)
        return drawn[torch.searchsorted(rows, query), key]

    def __str__(self) -> str:
        return f"random({self.num_blocks}, seed={self.seed})"


@dataclass(frozen=True)
class Blocks(Mask):
    """A mask over blocks of slots instead of slots."""

    inner: Mask
    size: int

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return self.inner.allows(query // self.size, key // self.size, -(-size // self.size))

    def __str__(self) -> str:
        return f"blocks({self.inner}, size={self.size})"


@dataclass(frozen=True)
class Graph(Mask):
    """A query looks along the edges of a graph: pairs (query, key)."""

    edges: tuple[tuple[int, int], ...]

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        longest = max([size, int(query.max()) + 1, *(max(edge) + 1 for edge in self.edges)])
        linked = torch.zeros(longest, longest, dtype=torch.bool, device=key.device)
        if self.edges:
            ends = torch.tensor(self.edges, device=key.device)
            linked[ends[:, 0], ends[:, 1]] = True
        return linked[query, key]

    def __str__(self) -> str:
        return f"graph({len(self.edges)} edges)"


def causal() -> Mask:
    """Nobody looks ahead.

    >>> slots = torch.arange(3)[None]
    >>> causal().bind(slots, slots).dense.int().tolist()
    [[[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]]
    """
    return Causal()


def padding(lengths: Tensor) -> Mask:
    """Nobody looks past the end of a row; `lengths` is [B]."""
    return Padding(lengths)


def window(size: int) -> Mask:
    """Everybody looks at most `reach` slots to either side."""
    return Window(size)


def global_tokens(*positions: int) -> Mask:
    """The chosen slots look at all and are looked at by all; negative ones count from the end."""
    return Global(positions)


def random(count: int, seed: int) -> Mask:
    """Each query looks at `count` keys that are a function of the seed."""
    return Random(count, seed)


def blocks(mask: Mask, size: int) -> Mask:
    """The mask holds for blocks of `size` slots."""
    return Blocks(mask, size)


def graph(edges: list[tuple[int, int]]) -> Mask:
    """A query looks along the edges (query, key) of a graph."""
    if any(slot < 0 for edge in edges for slot in edge):
        raise UsageError("edges of a graph are pairs of slots counted from 0; a negative slot was given")
    return Graph(tuple((int(query), int(key)) for query, key in edges))


class BoundMask:
    """A mask at given slots; what kernels ask of it is built once, on first use."""

    def __init__(self, mask: Mask, query: Tensor, key: Tensor) -> None:
        self.mask, self.query, self.key = mask, query, key

    @cached_property
    def dense(self) -> Tensor:
        """Where a query may look, [B|1, 1, Q, K]."""
        size = int(self.key.max()) + 1 if self.key.numel() else 0
        return self.mask.allows(self.query[:, None, :, None], self.key[:, None, None, :], size)

    @cached_property
    def masked_queries(self) -> Tensor | None:
        """Queries that may look at nothing, [B|1, 1, Q, 1]; None when every query sees something."""
        blank = ~self.dense.any(-1, keepdim=True)
        return blank if bool(blank.any()) else None

    @cached_property
    def is_full(self) -> bool:
        """Whether every query may look everywhere."""
        return bool(self.dense.all())

    def additive(self, dtype: torch.dtype) -> Tensor:
        """Zero where one may look and the least number elsewhere, [B|1, 1, Q, K]."""
        key = f"_additive_{dtype}"
        if key not in self.__dict__:
            zeros = torch.zeros(self.dense.shape, dtype=dtype, device=self.dense.device)
            self.__dict__[key] = zeros.masked_fill_(~self.dense, torch.finfo(dtype).min)
        made: Tensor = self.__dict__[key]
        return made

    def select_queries(self, rows: slice | Tensor) -> BoundMask:
        """Return the mask of some of the queries."""
        return BoundMask(self.mask, self.query[:, rows], self.key)

    def block_layout(self, size: int) -> Tensor:
        """Which blocks of queries look at which blocks of keys at all, [B|1, ⌈Q/size⌉, ⌈K/size⌉]."""
        queries, keys = self.dense.shape[-2:]
        room = (0, -keys % size, 0, -queries % size)
        grid = torch.nn.functional.pad(self.dense[:, 0], room)
        return grid.unflatten(1, (-1, size)).unflatten(3, (-1, size)).any(dim=4).any(dim=2)

    def __str__(self) -> str:
        return str(self.mask)
