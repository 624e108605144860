"""From traces to the parts of a record: attention by site kind, queries, keys and values, positions, decoding steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regard.attention.sites import check_heads, site_kind, site_layer, unknown_site_message
from regard.attention.trace import SiteTrace, Trace, trace
from regard.config.description import has_residual
from regard.config.inference import MAX_STORED_BYTES, RecordConfig
from regard.decoding.beams import BeamTree, top_k_columns
from regard.decoding.generator import TracedModel
from regard.errors import UsageError
from regard.view.codec import Weights
from regard.view.record.attention import AttentionRecord, LazyWeights
from regard.view.record.parts import DecodingStep, HeadQKV, PositionEncodings, Ranking

MIN_POSITION_CODES = 32  # positions whose codes a record holds
MAX_POSITION_CODES = 128
ToSubwords = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True)
class Axes:
    """Which texts of a record the rows and columns of a site kind are."""

    rows: str
    columns: str
    is_generated: bool = False
    is_causal: bool = False


@dataclass(frozen=True)
class CapturedText:
    """Traces of one text, or of one sentence: of all sites, and of the queries, keys and values of selected heads."""

    trace: Trace
    qkv_trace: Trace | None


@contextmanager
def capture_text(config: RecordConfig, sites: Mapping[str, int], rows: int, columns: int) -> Iterator[CapturedText]:
    """Trace all sites of a model for one text, and the queries, keys and values of the heads that the config names."""
    num_weights = sum(sites.values()) * rows * columns
    qkv_heads = check_head_names(config.store_qkv, sites)
    with trace(store=config.storage(num_weights)) as site_trace:
        if not qkv_heads:
            yield CapturedText(site_trace, None)
        else:
            with trace(qkv_heads, store="qkv") as qkv_trace:
                yield CapturedText(site_trace, qkv_trace)


def check_head_names(names: str, sites: Mapping[str, int]) -> str:
    """Check that a model has the heads of a comma-separated list; return the list."""
    for name in filter(None, names.split(",")):
        site, _, head = name.strip().partition(":")
        if site not in sites:
            raise UsageError(unknown_site_message(site, sites))
        if not head.isdecimal():
            raise UsageError(f"{name.strip()!r} names no head: write the site and the head's index, as in {site}:0")
        check_heads(site, [int(head)], sites[site])
    return names


@dataclass(frozen=True)
class LayerWeights:
    """Captured attention of one site kind, a site per layer; weights are computed on access."""

    layers: tuple[SiteTrace, ...]

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, rows, columns."""
        _, heads, queries, keys = self.layers[0].shape
        return len(self.layers), heads, queries, keys

    def rows(self, layer: int, head: int, rows: NDArray[np.int64]) -> Weights:
        """Weights of these rows of a head; `layer` is an index into the captured layers."""
        return self.layers[layer].query_rows(head, rows)  # [rows, columns]


@dataclass(frozen=True)
class BlockDiagonalWeights:
    """Sentences as one text: each attends to itself only, so that their weights form diagonal blocks."""

    blocks: tuple[LazyWeights, ...]

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, rows, columns."""
        layers, heads = self.blocks[0].shape[:2]
        num_rows = sum(block.shape[2] for block in self.blocks)
        num_columns = sum(block.shape[3] for block in self.blocks)
        return layers, heads, num_rows, num_columns

    def rows(self, layer: int, head: int, rows: NDArray[np.int64]) -> Weights:
        """Weights of these rows of a head; `layer` is an index into the captured layers."""
        weights = np.zeros((len(rows), self.shape[3]), dtype=np.float32)
        first_row = 0
        first_column = 0
        for block in self.blocks:
            height, width = block.shape[2:]
            is_inside = (rows >= first_row) & (rows < first_row + height)
            if is_inside.any():
                block_weights = block.rows(layer, head, rows[is_inside] - first_row)
                weights[is_inside, first_column : first_column + width] = block_weights
            first_row += height
            first_column += width
        return weights


def collect_attention(
    traces: Sequence[Trace], axes: Mapping[str, Axes], config: object, prefix: str = ""
) -> tuple[AttentionRecord, ...]:
    """Collect the traces of a text's sentences by site kind, in the order of `axes`.

    `config` is that of the model; `prefix` tells the models of an ensemble apart.
    """
    if not traces:
        return ()
    records = []
    for kind, kind_axes in axes.items():
        sites = [site for site in traces[0] if site_kind(site) == kind]
        if not sites:
            continue
        blocks = [LayerWeights(tuple(sentence[site] for site in sites)) for sentence in traces]
        weights: LazyWeights = blocks[0] if len(blocks) == 1 else BlockDiagonalWeights(tuple(blocks))
        records.append(
            AttentionRecord(
                f"{prefix}{kind}",
                kind_axes.rows,
                columns=kind_axes.columns,
                stored=_materialize(weights) if _has_weights(traces, sites) else weights,
                layers=tuple(site_layer(site) for site in sites),
                is_generated=kind_axes.is_generated,
                is_causal=kind_axes.is_causal,
                has_residual=has_residual(config, kind),
                num_visible=_collect_visible(traces, sites),
            )
        )
    return tuple(records)


def _collect_visible(traces: Sequence[Trace], sites: Sequence[str]) -> NDArray[np.int64] | None:
    """Number of keys that the mask allows each query, [layers or 1, Q]; None where a site does not state it."""
    layers = []
    for site in sites:
        counts = [sentence[site].num_visible for sentence in traces]
        layers.append([sentence_counts[0, 0] for sentence_counts in counts if sentence_counts is not None])
        if len(layers[-1]) < len(traces):
            return None
    by_layer = np.stack([np.concatenate(sentences) for sentences in layers])
    return by_layer[:1] if (by_layer == by_layer[0]).all() else by_layer


def _has_weights(traces: Sequence[Trace], sites: Sequence[str]) -> bool:
    """Whether traces hold weights, rather than queries and keys, of all these sites."""
    return all(sentence[site].has_weights for sentence, site in itertools.product(traces, sites))


def _materialize(weights: LazyWeights) -> NDArray[np.float16] | LazyWeights:
    """Copy all weights into one array, unless they are too many."""
    layers, heads, rows, columns = weights.shape
    if 2 * layers * heads * rows * columns > MAX_STORED_BYTES:
        return weights
    all_rows = np.arange(rows)
    array = np.empty(weights.shape, dtype=np.float16)
    for layer in range(layers):
        for head in range(heads):
            array[layer, head] = weights.rows(layer, head, all_rows)
    return array


def collect_qkv(captured: CapturedText) -> tuple[HeadQKV, ...]:
    """Collect queries, keys, values, scores and weights of the heads that the config named."""
    if captured.qkv_trace is None:
        return ()
    heads = []
    for site in captured.qkv_trace:
        site_trace = captured.qkv_trace[site]
        qkv = site_trace.qkv
        for index, head in enumerate(site_trace.head_indices):
            heads.append(
                HeadQKV(
                    site_kind(site),
                    site_layer(site),
                    head=head,
                    query=qkv.query[0, index],
                    key=qkv.key[0, index],
                    value=qkv.value[0, index],
                    scores=qkv.scores[0, index],
                    weights=qkv.weights[0, index],
                    scale=qkv.scale,
                    temperature=qkv.temperature,
                    has_bias=qkv.has_bias,
                    normalization=qkv.normalization,
                )
            )
    return tuple(heads)


def position_encodings(model: TracedModel, num_tokens: int) -> PositionEncodings | None:
    """Codes of the positions of a text, and of a few more; None where the model has none."""
    count = min(max(num_tokens, MIN_POSITION_CODES), MAX_POSITION_CODES)
    codes = model.position_codes(count)
    return None if codes is None else PositionEncodings(*codes)


def decoding_steps(
    logprobs: NDArray[np.floating],  # [tokens, vocabulary]
    ids: Sequence[int],
    subwords: ToSubwords,
    top_k: int,
    tree: BeamTree | None = None,
) -> tuple[DecodingStep, ...]:
    """Build a step for each token; probabilities are the model's own, before rules, temperature and sampling.

    >>> logprobs = np.log(np.array([[0.25, 0.75]]))
    >>> steps = decoding_steps(logprobs, [1], lambda ids: [f"t{token_id}" for token_id in ids], top_k=1)
    >>> steps[0].token, round(steps[0].probability, 2), round(steps[0].entropy, 3), steps[0].top
    ('t1', 0.75, 0.811, (('t1', 0.75),))
    """
    probabilities = np.exp(logprobs)
    entropies = -(probabilities * np.where(probabilities > 0, logprobs, 0.0)).sum(axis=1) / np.log(2)  # bits
    top_k = min(top_k, logprobs.shape[1])
    top_ids = top_k_columns(logprobs, top_k) if top_k else np.zeros((len(ids), 0), np.int64)
    steps = []
    for index, (token_id, subword) in enumerate(zip(ids, subwords(ids), strict=True)):
        top_subwords = subwords(top_ids[index].tolist())
        top_probabilities = probabilities[index, top_ids[index]].tolist()
        steps.append(
            DecodingStep(
                subword,
                float(probabilities[index, token_id]),
                entropy=float(entropies[index]),
                top=Ranking(zip(top_subwords, top_probabilities, strict=True)),
                beams=() if tree is None else tuple(_label_beams(tree, index, subwords)),
            )
        )
    return tuple(steps)


def _label_beams(tree: BeamTree, step: int, subwords: ToSubwords) -> list[tuple[int, str, float]]:
    """Beams after a step: index of the parent, subword, score."""
    if step >= len(tree.steps):
        return []
    beams = tree.steps[step]
    labels = subwords([token_id for _, token_id, _ in beams])
    return [(parent, label, score) for (parent, _, score), label in zip(beams, labels, strict=True)]
