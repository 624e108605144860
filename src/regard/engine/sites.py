"""Attention sites of models in the engine, and what one call of the library captures and ablates there.

The library computes no attention weights for a trace. It copies queries, keys and values, as its kernel uses them, into
arrays of the caller; `engine.capture` computes from them what the trace stores. The computation itself is unchanged.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.attention.intervention import active_intervention
from regard.attention.trace import active_trace
from regard.config.block import BlockConfig
from regard.config.description import LayerDescription, StackDescription
from regard.engine.description import ModelDescription
from regard.engine.library import CODES, CAblation, CAttentionOptions, CCapture, pointer

Float32Array = NDArray[np.float32]
MAX_CAPTURED_BYTES = 256 << 20  # of layers that are captured together; a single layer may need more


@dataclass(frozen=True, eq=False)
class EngineSite:
    """An attention site: its name, and what determines its weights beside queries and keys."""

    name: str  # as in torch: encoder.3.self
    kind: str  # a name of `CODES["site"]`
    layer: int
    block: BlockConfig
    settings: LayerDescription  # window and positions
    bias_table: Float32Array | None = None  # of a relative bias, [num_buckets, num_heads]

    @property
    def num_heads(self) -> int:
        """Number of heads."""
        return self.block.num_heads

    @property
    def is_causal(self) -> bool:
        """Whether tokens attend to themselves and to earlier ones alone."""
        return self.kind == "decoder_self" or self.settings.is_causal

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return self.block.attention_scale or 1 / math.sqrt(self.block.key_dim)


def engine_sites(model: ModelDescription, tables: Mapping[tuple[str, int], Float32Array]) -> list[EngineSite]:
    """Attention sites of a model, first layer first; `tables` has relative biases by slot and index."""
    sites = []
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is not None:
            sites += _stack_sites(side, stack, tables)
    return sites


def _stack_sites(
    side: str, stack: StackDescription, tables: Mapping[tuple[str, int], Float32Array]
) -> list[EngineSite]:
    sites = []
    for layer, settings in enumerate(stack.layers):
        is_relative = settings.positions == "relative"
        bias_table = tables[f"{side}_relative_bias", settings.bias_table] if is_relative else None
        sites.append(
            EngineSite(
                f"{side}.{layer}.self",
                f"{side}_self",
                layer=layer,
                block=stack.block,
                settings=settings,
                bias_table=bias_table,
            )
        )
        if stack.block.cross_attention:
            settings = LayerDescription(block=settings.block)
            name = f"{side}.{layer}.cross"
            sites.append(EngineSite(name, f"{side}_cross", layer=layer, block=stack.block, settings=settings))
    return sites


def traced_sites(sites: Iterable[EngineSite]) -> list[EngineSite]:
    """The sites that an active trace selects."""
    return [site for site in sites if active_trace(site.name) is not None]


class SiteArrays:
    """Arrays that receive queries, keys and values of one site in a call; `None`: they are not wanted."""

    def __init__(self, site: EngineSite, num_queries: int, num_keys: int) -> None:
        block = site.block
        trace = active_trace(site.name)
        has_values = trace is not None and any(active.store == "qkv" for active in trace.active_for(site.name))
        self.site = site
        self.query = _empty(num_queries, block.num_heads, block.key_dim)
        self.key = _empty(num_keys, block.kv_heads, block.key_dim)
        self.value = _empty(num_keys, block.kv_heads, block.value_dim) if has_values else None

    def to_struct(self) -> CCapture:
        """The C struct."""
        return CCapture(
            site=CODES["site"][self.site.kind],
            layer=self.site.layer,
            query=pointer(self.query) if len(self.query) else None,
            key=pointer(self.key) if len(self.key) else None,
            value=None if self.value is None or not len(self.value) else pointer(self.value),
        )


def _empty(*shape: int) -> Float32Array:
    return np.empty(shape, dtype=np.float32)


class AttentionOptions:
    """What one call of the library captures, and what an active intervention ablates in it."""

    def __init__(self, sites: Iterable[EngineSite], captures: Sequence[SiteArrays] = ()) -> None:
        """`sites`: those that the call computes."""
        heads = _ablated_heads(sites)
        ablations = [
            CAblation(site=CODES["site"][site.kind], layer=site.layer, heads=pointer(flags)) for site, flags in heads
        ]
        structs = [capture.to_struct() for capture in captures]
        self._captures = (CCapture * len(structs))(*structs)
        self._ablations = (CAblation * len(ablations))(*ablations)
        self._options = CAttentionOptions(
            captures=ctypes.addressof(self._captures),
            num_captures=len(structs),
            ablations=ctypes.addressof(self._ablations),
            num_ablations=len(ablations),
        )
        self._kept_alive = heads, captures

    @property
    def argument(self) -> Any:
        """The library's argument; `None`, a null pointer, where there is nothing to capture or ablate."""
        return ctypes.byref(self._options) if self._options.num_captures or self._options.num_ablations else None


def _ablated_heads(sites: Iterable[EngineSite]) -> list[tuple[EngineSite, NDArray[np.uint8]]]:
    """Flags of each head, 1: ablated, of the sites where an active intervention ablates any."""
    intervention = active_intervention()
    if intervention is None:
        return []
    ablated = []
    for site in sites:
        heads = intervention.visit(site.name, site.num_heads)
        if heads is not None:
            flags = np.zeros(site.num_heads, np.uint8)
            flags[sorted(heads)] = 1
            ablated.append((site, flags))
    return ablated


def group_sites(sites: Sequence[EngineSite], num_tokens: int) -> list[list[EngineSite]]:
    """Divide the sites to capture into groups of bounded memory; one empty group where there is none.

    The call is repeated for each group, with the same result: time is spent only where a long text is traced in many
    layers.
    """
    groups: list[list[EngineSite]] = [[]]
    num_bytes = 0
    for site in sites:
        site_bytes = 4 * num_tokens * sum(site.block.qkv_widths)
        if groups[-1] and num_bytes + site_bytes > MAX_CAPTURED_BYTES:
            groups.append([])
            num_bytes = 0
        groups[-1].append(site)
        num_bytes += site_bytes
    return groups
