"""Attention masks: printable expressions, bound to positions once per forward pass and shared by all layers.

A mask is true where a query may attend to a key. It is a function of *positions*: where query and key stand in their
sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.errors import UsageError


class Mask:
    """Expression for the key positions that a query position may attend to; combine with `&`, `|` and `~`.

    >>> print(causal() & ~window(0))
    causal() & ~window(0)
    """

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        """Boolean mask [B|1, H|1, Q, K] at positions [B|1, 1, Q, 1] and [B|1, 1, 1, K] of sequences of `size` keys."""
        raise NotImplementedError

    @property
    def num_heads(self) -> int:
        """Number of heads for which the mask differs; 1: it is the same for all."""
        return 1

    def bind(self, query: Tensor, key: Tensor) -> BoundMask:
        """Bind the mask to query positions [B|1, Q] and key positions [B|1, K]."""
        return BoundMask(self, query, key)

    def __and__(self, other: Mask) -> Mask:
        return And(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other)

    def __invert__(self) -> Mask:
        return Not(self)


@dataclass(frozen=True)
class _Combination(Mask):
    """Base of masks that combine two others."""

    left: Mask
    right: Mask

    @property
    def num_heads(self) -> int:
        return max(self.left.num_heads, self.right.num_heads)


@dataclass(frozen=True)
class And(_Combination):
    """Intersection: both masks allow the pair."""

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return self.left.allows(query, key, size) & self.right.allows(query, key, size)

    def __str__(self) -> str:
        return f"{_parenthesize(self.left, Or)} & {_parenthesize(self.right, Or)}"


@dataclass(frozen=True)
class Or(_Combination):
    """Union: at least one of the masks allows the pair."""

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return self.left.allows(query, key, size) | self.right.allows(query, key, size)

    def __str__(self) -> str:
        return f"{self.left} | {self.right}"


@dataclass(frozen=True)
class Not(Mask):
    """Complement: the mask does not allow the pair."""

    inner: Mask

    @property
    def num_heads(self) -> int:
        return self.inner.num_heads

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return ~self.inner.allows(query, key, size)

    def __str__(self) -> str:
        return f"~{_parenthesize(self.inner, _Combination)}"


def _parenthesize(mask: Mask, kind: type[Mask]) -> str:
    return f"({mask})" if isinstance(mask, kind) else str(mask)


@dataclass(frozen=True)
class Causal(Mask):
    """A query attends to its own position and to earlier ones."""

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return key <= query

    def __str__(self) -> str:
        return "causal()"


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """No query attends past the end of its sequence."""

    lengths: Tensor  # [B]

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return (key < self.lengths.view(-1, 1, 1, 1)) & (query == query)

    def __str__(self) -> str:
        return "padding()"


@dataclass(frozen=True)
class Window(Mask):
    """A query attends to at most `size` positions on either side."""

    size: int

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return (query - key).abs() <= self.size

    def __str__(self) -> str:
        return f"window({self.size})"


@dataclass(frozen=True, eq=False)
class MonotonicWindow(Mask):
    """A query attends to at most `size` positions on either side of its own in another sequence, or of its end."""

    lengths: Tensor  # [B], of the other sequences
    size: int

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        centre = torch.minimum(query, self.lengths.view(-1, 1, 1, 1) - 1)
        return ((key - centre).abs() <= self.size) & (key < self.lengths.view(-1, 1, 1, 1))

    def __str__(self) -> str:
        return f"monotonic_window({self.size})"


@dataclass(frozen=True)
class Global(Mask):
    """Global positions attend to all keys and all queries attend to them; negative ones count from the end."""

    positions: tuple[int, ...]

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        global_positions = torch.tensor([position % size for position in self.positions], device=key.device)
        return torch.isin(query, global_positions) | torch.isin(key, global_positions)

    def __str__(self) -> str:
        return f"global_tokens({', '.join(map(str, self.positions))})"


@dataclass(frozen=True)
class Random(Mask):
    """A query attends to `num_keys` pseudo-random keys: a function of seed, query position and sequence length."""

    num_keys: int
    seed: int

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        rows = query.reshape(-1).unique()
        keys = torch.arange(size, device=key.device)
        hashes = (rows.view(-1, 1) * 2_654_435_761 + keys * 40_503 + self.seed * 97) & 0x7FFFFFFF
        for _ in range(2):  # a small integer hash: fold, multiply, add
            hashes = ((hashes ^ (hashes >> 15)) * 739_982_445 + 12_345) & 0x7FFFFFFF
        smallest = hashes.topk(min(self.num_keys, size), dim=1, largest=False).indices
        allowed = torch.zeros_like(hashes, dtype=torch.bool)
        allowed.scatter_(1, smallest, True)
        return allowed[torch.searchsorted(rows, query), key]

    def __str__(self) -> str:
        return f"random({self.num_keys}, seed={self.seed})"


@dataclass(frozen=True)
class Blocks(Mask):
    """A mask over blocks of positions."""

    inner: Mask
    size: int

    @property
    def num_heads(self) -> int:
        return self.inner.num_heads

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        return self.inner.allows(query // self.size, key // self.size, -(-size // self.size))

    def __str__(self) -> str:
        return f"blocks({self.inner}, size={self.size})"


@dataclass(frozen=True)
class Graph(Mask):
    """A query attends along the edges of a graph: pairs (query, key)."""

    edges: tuple[tuple[int, int], ...]

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        num_nodes = max([size, int(query.max()) + 1, *(max(edge) + 1 for edge in self.edges)])
        adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.bool, device=key.device)
        if self.edges:
            ends = torch.tensor(self.edges, device=key.device)
            adjacency[ends[:, 0], ends[:, 1]] = True
        return adjacency[query, key]

    def __str__(self) -> str:
        return f"graph({len(self.edges)} edges)"


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A boolean tensor: true where the query at this position may attend to the key at that position."""

    allowed: Tensor  # [B|1, H|1, Q|1, K|1]

    @property
    def num_heads(self) -> int:
        return self.allowed.shape[1]

    def allows(self, query: Tensor, key: Tensor, size: int) -> Tensor:
        batch, heads, queries, keys = self.allowed.shape
        rows = torch.arange(batch, device=key.device).view(-1, 1, 1, 1)
        head_indices = torch.arange(heads, device=key.device).view(1, -1, 1, 1)
        query = query if queries > 1 else torch.zeros_like(query)
        key = key if keys > 1 else torch.zeros_like(key)
        return self.allowed[rows, head_indices, query, key]

    def __str__(self) -> str:
        return f"dense({'×'.join(str(size) for size in self.allowed.shape)})"


def causal() -> Mask:
    """A query attends to its own position and to earlier ones.

    >>> positions = torch.arange(3)[None]
    >>> causal().bind(positions, positions).dense.int().tolist()
    [[[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]]
    """
    return Causal()


def padding(lengths: Tensor) -> Mask:
    """No query attends past the end of its sequence; `lengths` is [B].

    >>> positions = torch.arange(3)[None]
    >>> padding(torch.tensor([2])).bind(positions, positions).dense[0, 0, 0].tolist()
    [True, True, False]
    """
    return Padding(lengths)


def window(size: int) -> Mask:
    """A query attends to at most `size` positions on either side.

    >>> positions = torch.arange(3)[None]
    >>> window(1).bind(positions, positions).dense.int().tolist()
    [[[[1, 1, 0], [1, 1, 1], [0, 1, 1]]]]
    """
    return Window(size)


def monotonic_window(lengths: Tensor, size: int) -> Mask:
    """A query attends to `size` positions around its own in a sequence of another text (Luong et al. 2015, local-m).

    Beyond the end of the sequence, of `lengths` [B], the window stays at its last position.

    >>> positions = torch.arange(3)[None]
    >>> monotonic_window(torch.tensor([2]), 0).bind(positions, positions).dense[0, 0].int().tolist()
    [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    """
    return MonotonicWindow(lengths, size)


def global_tokens(*positions: int) -> Mask:
    """Global positions attend to all keys and all queries attend to them; negative ones count from the end."""
    return Global(positions)


def random(num_keys: int, seed: int) -> Mask:
    """A query attends to `num_keys` pseudo-random keys, a function of the seed."""
    return Random(num_keys, seed)


def blocks(mask: Mask, size: int) -> Mask:
    """Apply a mask to blocks of `size` positions."""
    return Blocks(mask, size)


def graph(edges: list[tuple[int, int]]) -> Mask:
    """A query attends along the edges (query, key) of a graph."""
    if any(min(edge) < 0 for edge in edges):
        raise UsageError("edges of a graph are pairs of positions counted from 0: one of them is negative")
    return Graph(tuple((int(query), int(key)) for query, key in edges))


class BoundMask:
    """A mask at fixed positions; the tensors that kernels need are computed on first use."""

    def __init__(self, mask: Mask, query: Tensor, key: Tensor) -> None:
        self.mask = mask
        self.query = query  # [B|1, Q]
        self.key = key  # [B|1, K]

    @cached_property
    def dense(self) -> Tensor:
        """Boolean mask, [B|1, H|1, Q, K]."""
        size = int(self.key.max()) + 1 if self.key.numel() else 0
        return self.mask.allows(self.query[:, None, :, None], self.key[:, None, None, :], size)

    @cached_property
    def masked_queries(self) -> Tensor | None:
        """Queries that may attend to nothing, [B|1, H|1, Q, 1]; None without any."""
        is_masked = ~self.dense.any(-1, keepdim=True)
        return is_masked if bool(is_masked.any()) else None

    @cached_property
    def is_full(self) -> bool:
        """Whether every query may attend to every key."""
        return bool(self.dense.all())

    def additive(self, dtype: torch.dtype) -> Tensor:
        """Zero at allowed keys, the smallest finite number at masked ones, [B|1, H|1, Q, K]."""
        name = f"_additive_{dtype}"
        if name not in self.__dict__:
            zeros = torch.zeros(self.dense.shape, dtype=dtype, device=self.dense.device)
            self.__dict__[name] = zeros.masked_fill_(~self.dense, torch.finfo(dtype).min)
        additive: Tensor = self.__dict__[name]
        return additive

    def select_queries(self, rows: slice | Tensor) -> BoundMask:
        """The mask restricted to these queries."""
        return BoundMask(self.mask, self.query[:, rows], self.key)

    def select_heads(self, heads: list[int]) -> BoundMask:
        """The mask restricted to these heads."""
        if self.mask.num_heads == 1:
            return self
        return _SelectedHeadsMask(self.mask, self.query, self.key, heads)

    def block_layout(self, size: int) -> Tensor:
        """Which blocks of queries attend to which blocks of keys, [B|1, ⌈Q/size⌉, ⌈K/size⌉]."""
        queries, keys = self.dense.shape[-2:]
        right_padding = -keys % size
        bottom_padding = -queries % size
        grid = torch.nn.functional.pad(self.dense[:, 0], (0, right_padding, 0, bottom_padding))
        return grid.unflatten(1, (-1, size)).unflatten(3, (-1, size)).any(dim=4).any(dim=2)

    def __str__(self) -> str:
        return str(self.mask)


class _SelectedHeadsMask(BoundMask):
    """Some heads of a mask that differs by head."""

    def __init__(self, mask: Mask, query: Tensor, key: Tensor, heads: list[int]) -> None:
        super().__init__(mask, query, key)
        self.heads = heads

    @cached_property
    def dense(self) -> Tensor:
        """Boolean mask of the selected heads, [B|1, heads, Q, K]."""
        return BoundMask(self.mask, self.query, self.key).dense[:, self.heads]

    def select_queries(self, rows: slice | Tensor) -> BoundMask:
        """The mask restricted to these queries."""
        return _SelectedHeadsMask(self.mask, self.query[:, rows], self.key, self.heads)
