"""From what a trace saw to what a record holds: sites by kind, layer over layer, sentences along the diagonal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention import trace as tracing
from regard.attention.positions import Learned, Positions, Rotary, Sinusoidal
from regard.attention.sites import check_heads, kind_of, layer_of, unknown_site
from regard.attention.trace import Trace, trace
from regard.config.seeing import MOST_KEPT, SeeingConfig
from regard.errors import UsageError
from regard.view.codes import Weights
from regard.view.record import Attention, Inside, Keeping, Places

PLACES = 128  # positions whose codes a record holds
SCHEMES = {Sinusoidal: "sinusoidal", Learned: "learned", Rotary: "rotary"}


@dataclass(frozen=True)
class Axes:
    """What rows and columns of a kind of attention stand for: the names of sides."""

    rows: str
    columns: str
    produced: bool = False
    causal: bool = False


@dataclass(frozen=True)
class Seen:
    """What was seen while one text, or one sentence of it, was read."""

    trace: Trace
    inside: Trace | None


@contextmanager
def seeing(config: SeeingConfig, sites: Mapping[str, int], rows: int, columns: int) -> Iterator[Seen]:
    """Watch all sites of a model while it reads one text; the heads asked for, from within."""
    size = sum(sites.values()) * rows * columns
    wanted = asked_heads(config.inside, sites)
    with trace(keep=config.kept(size)) as seen:
        if not wanted:
            yield Seen(seen, None)
        else:
            with trace(wanted, keep="inside") as within:
                yield Seen(seen, within)


def asked_heads(names: str, sites: Mapping[str, int]) -> str:
    """Return the heads that are asked for, as a trace wants them; one that is not there is refused."""
    for name in filter(None, names.split(",")):
        site, _, head = name.strip().partition(":")
        if site not in sites:
            raise UsageError(unknown_site(site, sites))
        if not head.isdecimal():
            raise UsageError(f"{name.strip()!r} names no head: write site and number, as in {site}:0")
        check_heads(site, [int(head)], sites[site])
    return names


@dataclass(frozen=True)
class Layers:
    """What was kept of one kind of attention while one text was read: matrices are computed when looked at."""

    records: tuple[tracing.Record, ...]

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, rows, columns."""
        _, heads, queries, keys = self.records[0].shape
        return len(self.records), heads, queries, keys

    def rows(self, place: int, head: int, rows: NDArray[np.int64]) -> Weights:
        """Return these rows of a head."""
        return self.records[place].some_rows(head, rows)


@dataclass(frozen=True)
class Diagonal:
    """Several texts as one: each saw itself only, so that their weights stand along the diagonal."""

    parts: tuple[Keeping, ...]

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, rows, columns."""
        layers, heads = self.parts[0].shape[:2]
        return layers, heads, sum(part.shape[2] for part in self.parts), sum(part.shape[3] for part in self.parts)

    def rows(self, place: int, head: int, rows: NDArray[np.int64]) -> Weights:
        """Return these rows of a head."""
        made = np.zeros((len(rows), self.shape[3]), dtype=np.float32)
        row = column = 0
        for part in self.parts:
            height, width = part.shape[2:]
            mine = (rows >= row) & (rows < row + height)
            if mine.any():
                made[mine, column : column + width] = part.rows(place, head, rows[mine] - row)
            row, column = row + height, column + width
        return made


def gathered(parts: Sequence[Trace], axes: Mapping[str, Axes], front: str = "") -> tuple[Attention, ...]:
    """Return the attention of each kind that was seen in the parts of a text; in the order of `axes`.

    What stands in front of their names says which of several models it is.
    """
    made = []
    for kind, sides in axes.items():
        sites = [site for site in parts[0] if kind_of(site) == kind] if parts else []
        if not sites:
            continue
        layers = [Layers(tuple(part[site] for site in sites)) for part in parts]
        whole: Keeping = layers[0] if len(layers) == 1 else Diagonal(tuple(layers))
        kept = _in_memory(whole, all(part[site].is_kept for part in parts for site in sites))
        numbers = tuple(layer_of(site) for site in sites)
        name = f"{front}{kind}"
        made.append(Attention(name, sides.rows, sides.columns, kept, numbers, sides.produced, sides.causal))
    return tuple(made)


def _in_memory(whole: Keeping, is_kept: bool) -> NDArray[np.float16] | Keeping:
    """Return all weights as one array where they were kept and are not too many."""
    layers, heads, rows, columns = whole.shape
    if not is_kept or 2 * layers * heads * rows * columns > MOST_KEPT:
        return whole
    every = np.arange(rows)
    made = np.empty(whole.shape, dtype=np.float16)
    for layer in range(layers):
        for head in range(heads):
            made[layer, head] = whole.rows(layer, head, every)
    return made


def insides(seen: Seen) -> tuple[Inside, ...]:
    """Return the numbers inside the heads that were asked for."""
    made = []
    for site in seen.inside or ():
        assert seen.inside is not None
        record = seen.inside[site]
        for at, head in enumerate(record.numbers):
            numbers = record.inside
            parts = (part[0, at] for part in (numbers.query, numbers.key, numbers.value, numbers.scores))
            made.append(Inside(kind_of(site), layer_of(site), head, *parts))
    return tuple(made)


@torch.no_grad()
def places_of(scheme: Positions, width: int, count: int, first: int = 0) -> Places | None:
    """Return the codes of the first places of a scheme, [places, width]; None where order is invisible.

    What turns queries and keys is told as the cosines and sines that a head of this width is turned by.
    """
    kind = next((name for known, name in SCHEMES.items() if isinstance(scheme, known)), "")
    if not kind:
        return None
    if isinstance(scheme, Learned):
        count = min(count, len(scheme.weight) - first)
    parameter = next(scheme.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    at = torch.arange(first, first + min(count, PLACES), device=device)
    if kind == "rotary":
        ones = torch.cat([torch.ones(len(at), width // 2), torch.zeros(len(at), width - width // 2)], dim=1)
        codes = scheme.rotate(ones[None, None].to(device), at[None])[0, 0]
    else:
        codes = scheme.embed(torch.zeros(len(at), width, device=device), at)
    return Places(kind, codes.float().cpu().numpy())
