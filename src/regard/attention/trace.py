"""What is seen: a tap on `attend` that is open only while someone watches and never touches the output.

What a trace keeps of one look: weights, or queries and keys that weights are computed from when they are asked for.

All arrays are NumPy's, most in half precision. Rows come out as float32, one head at a time.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.attention.sites import check_heads, parse_heads, site_layer, unknown_site_message
from regard.errors import UsageError, nearest

STORES = ("weights", "queries", "entropy", "inside")


@dataclass
class SiteTrace:
    """What was seen at one site; successive steps join along the query axis."""

    site: str
    mask: str
    head_indices: tuple[int, ...]  # of the heads that were kept
    captures: list[Kept] = field(default_factory=list)

    @property
    def role(self) -> str:
        """`self`, `cross`, …: the last part of the site's name."""
        return self.site.rpartition(".")[2]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Rows of the batch, heads kept, queries in all, keys."""
        shapes = [part.shape for part in self._looks()]
        if len({shape[0] for shape in shapes}) > 1:
            raise UsageError(
                f"{self.site}: the rows changed while it was watched, as in a beam search: ask the answer where the "
                "model looked (its attention), or search greedily"
            )
        return shapes[0][0], shapes[0][1], sum(shape[2] for shape in shapes), max(shape[3] for shape in shapes)

    @property
    def weights(self) -> Float32Array:
        """All weights seen, [B, H, Q, K]; a step that saw fewer keys has zeros at the others."""
        batch, heads, _, _ = self.shape
        return np.stack([[self._matrix(row, head) for head in range(heads)] for row in range(batch)])

    def matrix(self, head: int, row: int = 0) -> Float32Array:
        """Return one head's weights [Q, K] of one row of the batch; from queries and keys where these are kept."""
        if head not in self.head_indices:
            check_heads(self.site, [head], max(self.head_indices) + 1)
            raise UsageError(f"{self.site}:{head} was not watched: {', '.join(map(str, self.head_indices))} were")
        return self._matrix(row, self.head_indices.index(head))

    def query_rows(self, head: int, indices: NDArray[np.int64], row: int = 0) -> Float32Array:
        """Return the weights of some queries [R, K]; `head` counts those that were kept."""
        made = np.zeros((len(indices), self.shape[3]), dtype=np.float32)
        first = 0
        for part in self._looks():
            count, wide = part.shape[2:]
            mine = (indices >= first) & (indices < first + count)
            if mine.any():
                made[mine, :wide] = part.rows(row, head, indices[mine] - first)
            first += count
        return made

    @property
    def has_weights(self) -> bool:
        """Whether weights were kept, and not what they are computed from."""
        return all(isinstance(part, CapturedWeights) for part in self.captures)

    def _matrix(self, row: int, head: int) -> Float32Array:
        return self.query_rows(head, np.arange(self.shape[2]), row)

    @property
    def entropy(self) -> Float32Array:
        """How spread the weights of each head and query were, in bits, [B, H, Q]."""
        if all(isinstance(part, CapturedEntropy) for part in self.captures):
            return np.concatenate([part.values for part in self.captures], axis=2).astype(np.float32)  # type: ignore[union-attr]
        weights = self.weights
        return np.asarray(-(weights * np.log2(np.maximum(weights, 1e-12))).sum(axis=-1), dtype=np.float32)

    @property
    def qkv(self) -> CapturedQKV:
        """The numbers inside the heads, where `keep` was `inside`; of the last step that was seen."""
        part = self.captures[-1]
        if not isinstance(part, CapturedQKV):
            raise UsageError(f"{self.site}: what is inside its heads was not kept: open the trace with keep='inside'")
        return part

    def _looks(self) -> list[CapturedWeights | CapturedQueriesKeys]:
        made = [part for part in self.captures if isinstance(part, CapturedWeights | CapturedQueriesKeys)]
        if len(made) != len(self.captures):
            raise UsageError(f"{self.site}: no weights were kept: open the trace with keep='weights' or 'queries'")
        return made


class Trace:
    """What was watched, by site."""

    def __init__(
        self,
        only: str = "*",
        *,
        heads: Collection[int] | None = None,
        rows: Collection[int] | None = None,
        keep: str = "weights",
        exact: bool = False,
        layers: Collection[int] | None = None,
    ) -> None:
        if keep not in STORES:
            raise UsageError(f"keep must be one of {', '.join(STORES)}, not {keep!r}{nearest(keep, STORES)}")
        self.store, self.full_precision = keep, exact
        self.heads = None if heads is None else sorted(set(heads))
        self.layers = None if layers is None else set(layers)
        self.queries = None if rows is None else np.unique(np.fromiter(rows, np.int64))
        self.patterns = parse_heads(only)  # site pattern → heads named with it; none: all
        self.records: dict[str, SiteTrace] = {}
        self.met: dict[str, int] = {}  # sites that anything looked at, wanted or not, with their heads where known
        self.outer: Trace | None = None
        self._queries: dict[str, int] = {}  # queries so far, by site
        self._shared: dict[int, tuple[object, Half]] = {}

    def matches(self, site: str) -> bool:
        """Whether this site is watched."""
        self.met.setdefault(site, 0)
        if self.layers is not None and site_layer(site) not in self.layers:
            return False
        return any(fnmatch.fnmatchcase(site, pattern) for pattern in self.patterns)

    def active_for(self, site: str) -> Iterator[Trace]:
        """Yield this trace and those that were open before it, as far as they want a site."""
        one: Trace | None = self
        while one is not None:
            if one.matches(site):
                yield one
            one = one.outer

    def selected_heads(self, site: str, count: int) -> list[int] | None:
        """Return the heads of a site that are wanted; None: all of them."""
        self.met[site] = count
        named = [heads for pattern, heads in self.patterns.items() if fnmatch.fnmatchcase(site, pattern)]
        chosen = self.heads if set() in named else sorted(set[int]().union(*named))
        if chosen is not None:
            check_heads(site, chosen, count)
        return chosen

    def selected_queries(self, site: str, count: int) -> NDArray[np.int64] | None:
        """Return which of the next `count` queries of a site are wanted; None: all of them."""
        first = self._queries.get(site, 0)
        self._queries[site] = first + count
        if self.queries is None:
            return None
        return self.queries[(self.queries >= first) & (self.queries < first + count)] - first

    def cached(self, key: object, build: Callable[[], Half]) -> Half:
        """Return what is made of a thing that many sites share, made once."""
        if id(key) not in self._shared:
            self._shared[id(key)] = key, build()  # the thing is kept, so that its number stays its own
        return self._shared[id(key)][1]

    def add(self, site: str, mask: str, kept: Kept, heads: list[int] | None) -> None:
        """File what was kept under its site."""
        numbers = tuple(range(self.met[site]) if heads is None else heads)
        self.records.setdefault(site, SiteTrace(site, mask, numbers)).captures.append(kept)

    def check(self) -> None:
        """Refuse sites that were named and that nothing has that ran."""
        for pattern in self.patterns:
            plain = not any(sign in pattern for sign in "*?[")
            if self.met and plain and pattern not in self.met:
                raise UsageError(unknown_site_message(pattern, self.met))
        found = {site_layer(site) for site in self.met}
        for layer in sorted((self.layers or set()) - found) if found else ():
            near = min(found, key=lambda one: abs(one - layer))
            raise UsageError(f"there is no layer {layer} (did you mean {near}?): they are {min(found)} to {max(found)}")

    def __getitem__(self, site: str) -> SiteTrace:
        if site not in self.records:
            raise UsageError(unknown_site_message(site, self.records))
        return self.records[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


_open: ContextVar[Trace | None] = ContextVar("regard_trace", default=None)


def is_tracing() -> bool:
    """Whether a trace is open, whatever it wants to see."""
    return _open.get() is not None


def active_trace(site: str) -> Trace | None:
    """Return the innermost open trace if it, or one around it, wants this site."""
    seen = _open.get()
    if seen is None:
        return None
    return seen if site and next(seen.active_for(site), None) is not None else None


@contextmanager
def trace(
    sites: str = "*",
    *,
    heads: Collection[int] | None = None,
    queries: Collection[int] | None = None,
    store: str = "weights",
    full_precision: bool = False,
    layers: Collection[int] | None = None,
) -> Iterator[Trace]:
    """Watch the sites that match `only` (shell patterns, separated by commas) while the block runs.

    `layers`, `heads` and `rows` (queries, counted from the first that the site sees) narrow it; `encoder.3.self:2` is a
    pattern with a head of its own. `keep` is what is stored: `weights` in half precision (`exact`: in full), `queries`
    and keys instead wherever these are smaller, `entropy` alone, or all numbers `inside` the heads. A trace within
    another one leaves that one open.

    >>> import torch
    >>> from regard.attention.attend import attend
    >>> one = torch.ones(1, 1, 2, 4)
    >>> with trace("hop.*") as seen:
    ...     _ = attend(one, one, one, site="hop.0")
    >>> seen["hop.0"].weights.tolist()
    [[[[0.5, 0.5], [0.5, 0.5]]]]
    """
    seen = Trace(sites, heads=heads, rows=queries, keep=store, exact=full_precision, layers=layers)
    seen.outer = _open.get()
    token = _open.set(seen)
    try:
        yield seen
    finally:
        _open.reset(token)
    seen.check()


Float32Array = NDArray[np.float32]
Half = NDArray[np.floating[Any]]
Numbers = NDArray[np.int64]
INT16_LEVELS = 32_000  # of 16 bits, to either side of zero


@dataclass(frozen=True)
class CapturedWeights:
    """The weights themselves."""

    values: Half  # [B, H, Q, K]

    @property
    def shape(self) -> tuple[int, ...]:
        """B, H, Q, K."""
        return self.values.shape

    def rows(self, row: int, head: int, rows: Numbers) -> Float32Array:
        """Return the weights of some queries of one head, [R, K]; heads count those that were kept."""
        return np.asarray(self.values[row, head, rows], dtype=np.float32)


@dataclass(frozen=True)
class Int16Array:
    """Numbers in 16 bits: as whole steps, of a size of its own for each head and entry.

    Half precision would spend its bits on small numbers; what scores hang on are the large ones.

    >>> Int16Array.from_float(np.array([[[[1.0, -0.5]]]], np.float32)).select(0, 0).round(4).tolist()
    [[1.0, -0.5]]
    """

    steps: NDArray[np.int16]  # [B, H, T, d]
    shape_size: Float32Array  # [B, H, 1, d]

    @classmethod
    def from_float(cls, values: Float32Array) -> Int16Array:
        """Return numbers [B, H, T, d] in 16 bits."""
        size = np.abs(values).max(axis=2, keepdims=True, initial=0.0) / INT16_LEVELS
        return cls(np.rint(values / np.maximum(size, 1e-30)).astype(np.int16), size.astype(np.float32))

    def select(self, row: int, head: int, positions: Numbers | slice = slice(None)) -> Float32Array:
        """Return the numbers of some places of one head, [T, d]."""
        return np.asarray(self.steps[row, head, positions] * self.shape_size[row, head], dtype=np.float32)


@dataclass(frozen=True)
class CapturedQueriesKeys:
    """Queries and keys of scaled dots: much smaller than weights where rows are long.

    The mean of all keys is taken off each of them, which no weight notices, so that 16 bits go further.

    >>> one = Int16Array.from_float(np.ones((1, 1, 2, 4), np.float32))
    >>> CapturedQueriesKeys(one, one, None).rows(0, 0, np.array([1])).tolist()
    [[0.5, 0.5]]
    """

    query: Int16Array  # [B, H, Q, d], scaled
    key: Int16Array  # [B, H, K, d]
    added: Half | None  # [B|1, Q|1, K], to the scores: -∞ where one may not look

    @property
    def shape(self) -> tuple[int, ...]:
        """B, H, Q, K."""
        return (*self.query.steps.shape[:3], self.key.steps.shape[2])

    def rows(self, row: int, head: int, rows: Numbers) -> Float32Array:
        """Return the weights of some queries of one head, [R, K]; heads count those that were kept."""
        scores = self.query.select(row, head, rows) @ self.key.select(row, head).T
        if self.added is not None:
            own = self.added[row if len(self.added) > 1 else 0]
            scores += own[rows if len(own) > 1 else [0] * len(rows)]
        most = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        made = np.exp(scores - np.where(np.isfinite(most), most, 0.0))  # a row that sees nothing becomes all zero
        return np.asarray(made / np.maximum(made.sum(axis=-1, keepdims=True), 1e-30), dtype=np.float32)


@dataclass(frozen=True)
class CapturedEntropy:
    """How spread the weights were, in bits."""

    values: Half  # [B, H, Q]


@dataclass(frozen=True)
class CapturedQKV:
    """The numbers that a head's weights and its output are made of, in full precision."""

    query: Float32Array  # [B, H, Q, d]
    key: Float32Array  # [B, H, K, d]
    value: Float32Array  # [B, H, K, v]
    scores: Float32Array  # [B, H, Q, K], -∞ where one may not look


Kept = CapturedWeights | CapturedQueriesKeys | CapturedEntropy | CapturedQKV
