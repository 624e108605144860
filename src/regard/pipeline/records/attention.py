"""From what a trace saw to what a record holds: sites by kind, layer over layer, sentences along the diagonal.

The steps of a text that was produced: how likely each token was, and what else was thought of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from regard.attention import trace as tracing
from regard.attention.positions import Learned, Positions, Rotary, Sinusoidal
from regard.attention.sites import check_heads, site_kind, site_layer, unknown_site_message
from regard.attention.trace import Trace, trace
from regard.config.inference import MAX_STORED_BYTES, RecordConfig
from regard.decoding.beams import BeamTree, top_k_columns
from regard.errors import UsageError
from regard.view.codec import Weights
from regard.view.record.attention import AttentionRecord, LazyWeights
from regard.view.record.parts import DecodingStep, HeadQKV, PositionCodes, Ranking

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
class CapturedText:
    """What was seen while one text, or one sentence of it, was read."""

    trace: Trace
    inside: Trace | None


@contextmanager
def capture_text(config: RecordConfig, sites: Mapping[str, int], rows: int, columns: int) -> Iterator[CapturedText]:
    """Watch all sites of a model while it reads one text; the heads asked for, from within."""
    size = sum(sites.values()) * rows * columns
    wanted = check_head_names(config.store_qkv, sites)
    with trace(store=config.storage(size)) as seen:
        if not wanted:
            yield CapturedText(seen, None)
        else:
            with trace(wanted, store="inside") as within:
                yield CapturedText(seen, within)


def check_head_names(names: str, sites: Mapping[str, int]) -> str:
    """Return the heads that are asked for, as a trace wants them; one that is not there is refused."""
    for name in filter(None, names.split(",")):
        site, _, head = name.strip().partition(":")
        if site not in sites:
            raise UsageError(unknown_site_message(site, sites))
        if not head.isdecimal():
            raise UsageError(f"{name.strip()!r} names no head: write site and number, as in {site}:0")
        check_heads(site, [int(head)], sites[site])
    return names


@dataclass(frozen=True)
class LayerWeights:
    """What was kept of one kind of attention while one text was read: matrices are computed when looked at."""

    records: tuple[tracing.SiteTrace, ...]

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, rows, columns."""
        _, heads, queries, keys = self.records[0].shape
        return len(self.records), heads, queries, keys

    def rows(self, place: int, head: int, rows: NDArray[np.int64]) -> Weights:
        """Return these rows of a head."""
        return self.records[place].query_rows(head, rows)


@dataclass(frozen=True)
class BlockDiagonalWeights:
    """Several texts as one: each saw itself only, so that their weights stand along the diagonal."""

    parts: tuple[LazyWeights, ...]

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


def collect_attention(
    traces: Sequence[Trace], axes: Mapping[str, Axes], prefix: str = ""
) -> tuple[AttentionRecord, ...]:
    """Return the attention of each kind that was seen in the parts of a text; in the order of `axes`.

    What stands in front of their names says which of several models it is.
    """
    made = []
    for kind, sides in axes.items():
        sites = [site for site in traces[0] if site_kind(site) == kind] if traces else []
        if not sites:
            continue
        layers = [LayerWeights(tuple(part[site] for site in sites)) for part in traces]
        whole: LazyWeights = layers[0] if len(layers) == 1 else BlockDiagonalWeights(tuple(layers))
        kept = _in_memory(whole, all(part[site].has_weights for part in traces for site in sites))
        numbers = tuple(site_layer(site) for site in sites)
        name = f"{prefix}{kind}"
        made.append(AttentionRecord(name, sides.rows, sides.columns, kept, numbers, sides.produced, sides.causal))
    return tuple(made)


def _in_memory(whole: LazyWeights, is_kept: bool) -> NDArray[np.float16] | LazyWeights:
    """Return all weights as one array where they were kept and are not too many."""
    layers, heads, rows, columns = whole.shape
    if not is_kept or 2 * layers * heads * rows * columns > MAX_STORED_BYTES:
        return whole
    every = np.arange(rows)
    made = np.empty(whole.shape, dtype=np.float16)
    for layer in range(layers):
        for head in range(heads):
            made[layer, head] = whole.rows(layer, head, every)
    return made


def collect_qkv(captured: CapturedText) -> tuple[HeadQKV, ...]:
    """Return the numbers inside the heads that were asked for."""
    made = []
    for site in captured.inside or ():
        assert captured.inside is not None
        record = captured.inside[site]
        for at, head in enumerate(record.head_indices):
            numbers = record.qkv
            parts = (part[0, at] for part in (numbers.query, numbers.key, numbers.value, numbers.scores))
            made.append(HeadQKV(site_kind(site), site_layer(site), head, *parts))
    return tuple(made)


@torch.no_grad()
def position_codes(scheme: Positions, width: int, count: int, offset: int = 0) -> PositionCodes | None:
    """Return the codes of the first places of a scheme, [places, width]; None where order is invisible.

    What turns queries and keys is told as the cosines and sines that a head of this width is turned by.
    """
    kind = next((name for known, name in SCHEMES.items() if isinstance(scheme, known)), "")
    if not kind:
        return None
    if isinstance(scheme, Learned):
        count = min(count, len(scheme.weight) - offset)
    parameter = next(scheme.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    at = torch.arange(offset, offset + min(count, PLACES), device=device)
    if kind == "rotary":
        ones = torch.cat([torch.ones(len(at), width // 2), torch.zeros(len(at), width - width // 2)], dim=1)
        codes = scheme.rotate(ones[None, None].to(device), at[None])[0, 0]
    else:
        codes = scheme.embed(torch.zeros(len(at), width, device=device), at)
    return PositionCodes(kind, codes.float().cpu().numpy())


Pieces = Callable[[Sequence[int]], list[str]]


def decoding_steps(
    logprobs: NDArray[np.floating],  # [T, V], the logarithms of all probabilities
    ids: Sequence[int],
    subwords: Pieces,
    top_k: int,
    tree: BeamTree | None = None,
) -> tuple[DecodingStep, ...]:
    """Return a step for each token; probabilities are the model's own, before rules, temperature and luck.

    >>> made = decoding_steps(np.log(np.array([[0.25, 0.75]])), [1], lambda ids: [f"t{number}" for number in ids], top_k=1)
    >>> made[0].token, round(made[0].probability, 2), round(made[0].entropy, 3), made[0].top
    ('t1', 0.75, 0.811, (('t1', 0.75),))
    """
    chances = np.exp(logprobs)
    entropy = -(chances * np.where(chances > 0, logprobs, 0.0)).sum(axis=1) / np.log(2)
    best = top_k_columns(logprobs, min(top_k, logprobs.shape[1])) if top_k else np.zeros((len(ids), 0), np.int64)
    made = []
    for number, (token, name) in enumerate(zip(ids, subwords(ids), strict=True)):
        names = subwords(best[number].tolist())
        ranking = Ranking(zip(names, chances[number, best[number]].tolist(), strict=True))
        beams = tuple(_named(tree, number, subwords)) if tree is not None else ()
        made.append(DecodingStep(name, float(chances[number, token]), float(entropy[number]), ranking, beams))
    return tuple(made)


def _named(tree: BeamTree, number: int, pieces: Pieces) -> list[tuple[int, str, float]]:
    if number >= len(tree.steps):
        return []
    found = tree.steps[number]
    names = pieces([token for _, token, _ in found])
    return [(parent, name, score) for (parent, _, score), name in zip(found, names, strict=True)]
