"""What is seen: a tap on `attend` that is open only while someone watches and never touches the output."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from regard.attention.kept import Half, Kept, KeptEntropy, KeptInside, KeptQueries, KeptWeights
from regard.attention.sites import check_heads, layer_of, read_heads, unknown_site
from regard.errors import UsageError, nearest

Weights = NDArray[np.float32]
KEEPS = ("weights", "queries", "entropy", "inside")


@dataclass
class Record:
    """What was seen at one site; successive steps join along the query axis."""

    site: str
    mask: str
    numbers: tuple[int, ...]  # of the heads that were kept
    parts: list[Kept] = field(default_factory=list)

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
    def weights(self) -> Weights:
        """All weights seen, [B, H, Q, K]; a step that saw fewer keys has zeros at the others."""
        batch, heads, _, _ = self.shape
        return np.stack([[self._matrix(row, head) for head in range(heads)] for row in range(batch)])

    def matrix(self, head: int, row: int = 0) -> Weights:
        """Return one head's weights [Q, K] of one row of the batch; from queries and keys where these are kept."""
        if head not in self.numbers:
            check_heads(self.site, [head], max(self.numbers) + 1)
            raise UsageError(f"{self.site}:{head} was not watched: {', '.join(map(str, self.numbers))} were")
        return self._matrix(row, self.numbers.index(head))

    def some_rows(self, head: int, rows: NDArray[np.int64], row: int = 0) -> Weights:
        """Return the weights of some queries [R, K]; `head` counts those that were kept."""
        made = np.zeros((len(rows), self.shape[3]), dtype=np.float32)
        first = 0
        for part in self._looks():
            count, wide = part.shape[2:]
            mine = (rows >= first) & (rows < first + count)
            if mine.any():
                made[mine, :wide] = part.rows(row, head, rows[mine] - first)
            first += count
        return made

    @property
    def is_kept(self) -> bool:
        """Whether weights were kept, and not what they are computed from."""
        return all(isinstance(part, KeptWeights) for part in self.parts)

    def _matrix(self, row: int, head: int) -> Weights:
        return self.some_rows(head, np.arange(self.shape[2]), row)

    @property
    def entropy(self) -> Weights:
        """How spread the weights of each head and query were, in bits, [B, H, Q]."""
        if all(isinstance(part, KeptEntropy) for part in self.parts):
            return np.concatenate([part.values for part in self.parts], axis=2).astype(np.float32)  # type: ignore[union-attr]
        weights = self.weights
        return np.asarray(-(weights * np.log2(np.maximum(weights, 1e-12))).sum(axis=-1), dtype=np.float32)

    @property
    def inside(self) -> KeptInside:
        """The numbers inside the heads, where `keep` was `inside`; of the last step that was seen."""
        part = self.parts[-1]
        if not isinstance(part, KeptInside):
            raise UsageError(f"{self.site}: what is inside its heads was not kept: open the trace with keep='inside'")
        return part

    def _looks(self) -> list[KeptWeights | KeptQueries]:
        made = [part for part in self.parts if isinstance(part, KeptWeights | KeptQueries)]
        if len(made) != len(self.parts):
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
        if keep not in KEEPS:
            raise UsageError(f"keep must be one of {', '.join(KEEPS)}, not {keep!r}{nearest(keep, KEEPS)}")
        self.keep, self.exact = keep, exact
        self.heads = None if heads is None else sorted(set(heads))
        self.layers = None if layers is None else set(layers)
        self.rows = None if rows is None else np.unique(np.fromiter(rows, np.int64))
        self.patterns = read_heads(only)  # site pattern → heads named with it; none: all
        self.records: dict[str, Record] = {}
        self.met: dict[str, int] = {}  # sites that anything looked at, wanted or not, with their heads where known
        self.outer: Trace | None = None
        self._queries: dict[str, int] = {}  # queries so far, by site
        self._shared: dict[int, tuple[object, Half]] = {}

    def wants(self, site: str) -> bool:
        """Whether this site is watched."""
        self.met.setdefault(site, 0)
        if self.layers is not None and layer_of(site) not in self.layers:
            return False
        return any(fnmatch.fnmatchcase(site, pattern) for pattern in self.patterns)

    def wanting(self, site: str) -> Iterator[Trace]:
        """Yield this trace and those that were open before it, as far as they want a site."""
        one: Trace | None = self
        while one is not None:
            if one.wants(site):
                yield one
            one = one.outer

    def heads_at(self, site: str, count: int) -> list[int] | None:
        """Return the heads of a site that are wanted; None: all of them."""
        self.met[site] = count
        named = [heads for pattern, heads in self.patterns.items() if fnmatch.fnmatchcase(site, pattern)]
        chosen = self.heads if set() in named else sorted(set[int]().union(*named))
        if chosen is not None:
            check_heads(site, chosen, count)
        return chosen

    def rows_at(self, site: str, count: int) -> NDArray[np.int64] | None:
        """Return which of the next `count` queries of a site are wanted; None: all of them."""
        first = self._queries.get(site, 0)
        self._queries[site] = first + count
        if self.rows is None:
            return None
        return self.rows[(self.rows >= first) & (self.rows < first + count)] - first

    def shared(self, thing: object, make: Callable[[], Half]) -> Half:
        """Return what is made of a thing that many sites share, made once."""
        if id(thing) not in self._shared:
            self._shared[id(thing)] = thing, make()  # the thing is kept, so that its number stays its own
        return self._shared[id(thing)][1]

    def add(self, site: str, mask: str, kept: Kept, heads: list[int] | None) -> None:
        """File what was kept under its site."""
        numbers = tuple(range(self.met[site]) if heads is None else heads)
        self.records.setdefault(site, Record(site, mask, numbers)).parts.append(kept)

    def check(self) -> None:
        """Refuse sites that were named and that nothing has that ran."""
        for pattern in self.patterns:
            plain = not any(sign in pattern for sign in "*?[")
            if self.met and plain and pattern not in self.met:
                raise UsageError(unknown_site(pattern, self.met))
        found = {layer_of(site) for site in self.met}
        for layer in sorted((self.layers or set()) - found) if found else ():
            near = min(found, key=lambda one: abs(one - layer))
            raise UsageError(f"there is no layer {layer} (did you mean {near}?): they are {min(found)} to {max(found)}")

    def __getitem__(self, site: str) -> Record:
        if site not in self.records:
            raise UsageError(unknown_site(site, self.records))
        return self.records[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


_open: ContextVar[Trace | None] = ContextVar("regard_trace", default=None)


def is_watched() -> bool:
    """Whether a trace is open, whatever it wants to see."""
    return _open.get() is not None


def watching(site: str) -> Trace | None:
    """Return the innermost open trace if it, or one around it, wants this site."""
    seen = _open.get()
    if seen is None:
        return None
    return seen if site and next(seen.wanting(site), None) is not None else None


@contextmanager
def trace(
    only: str = "*",
    *,
    heads: Collection[int] | None = None,
    rows: Collection[int] | None = None,
    keep: str = "weights",
    exact: bool = False,
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
    seen = Trace(only, heads=heads, rows=rows, keep=keep, exact=exact, layers=layers)
    seen.outer = _open.get()
    token = _open.set(seen)
    try:
        yield seen
    finally:
        _open.reset(token)
    seen.check()
