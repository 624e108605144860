"""Transformers of every family, written out from their papers in NumPy and float64, one sequence at a time.

Nothing here calls the code under test: settings are read from the config, weights by their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ALIBI_BASE = 8  # slopes of n heads: 2^(-8/n), 2^(-16/n), …
NUM_BUCKETS = 32
MAX_DISTANCE = 128
BISECTIONS = 100


class Reference:
    """What a model must compute. `attention` has the weights of each site and head, [queries, keys]."""

    def __init__(self, model: Any, config: Any = None) -> None:
        """The model with its own config, or with another one for the same weights."""
        self.config = config or model.config
        self.weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
        self.attention: dict[str, list[Array]] = {}

    def outputs(self, ids: list[int]) -> Array:
        """What `tests.models.test_parts.outputs` gives for one sequence."""
        match self.config.family:
            case "transformer":
                source = self.run_stack("encoder", self.embed(ids, "source_positions"))
                return self.run_stack("decoder", self.embed(ids, "target_positions"), source)
            case "bert":
                return self.run_stack("encoder", self.embed(ids, "position_embedding"))
        return self.run_stack("decoder", self.embed(ids, "positions")) @ self.weights["token_embedding.weight"].T

    # ---- embeddings

    def embed(self, ids: list[int], positions_name: str) -> Array:
        """Embeddings of the tokens, with their positions where these belong to the embedding."""
        config = self.config
        hidden = self.weights["token_embedding.weight"][ids]
        if config.family == "transformer":
            hidden = hidden * math.sqrt(config.hidden_size)
        match config.positions:
            case "learned":
                hidden = hidden + self.weights[f"{positions_name}.weight"][: len(ids)]
            case "sinusoidal":
                hidden = hidden + sinusoids(len(ids), config.hidden_size)
            case "interleaved":
                hidden = hidden + interleave(sinusoids(len(ids), config.hidden_size))
            case "concatenated":
                both = np.concatenate([hidden, sinusoids(len(ids), config.hidden_size)], axis=1)
                hidden = both @ self.weights[f"{positions_name}.projection.weight"].T
        if config.family == "bert":
            hidden = self.norm(hidden + self.weights["token_type_embedding.weight"][0], "embedding_norm")
        return hidden

    # ---- blocks

    def run_stack(self, name: str, hidden: Array, source: Array | None = None) -> Array:
        """Hidden states after all layers of a stack."""
        for layer in range(self.stack(name).num_layers):
            path = f"{name}.layers.{layer}"
            hidden = self.sublayer(name, f"{path}.attention", hidden, partial(self.attend, name, layer))
            if source is not None:
                cross_attend = partial(self.attend, name, layer, source=source)
                hidden = self.sublayer(name, f"{path}.cross_attention", hidden, cross_attend)
            hidden = self.sublayer(name, f"{path}.feed_forward", hidden, partial(self.feed_forward, path))
        return self.norm(hidden, f"{name}.final_norm") if self.config.norm_placement in ("pre", "both") else hidden

    def stack(self, name: str) -> Any:
        return getattr(self.config, name) if self.config.family == "transformer" else self.config.stack

    def sublayer(self, name: str, path: str, hidden: Array, compute: Callable[[Array], Array]) -> Array:
        """pre: x + f(norm(x)); post: norm(x + f(x)); both: x + norm(f(norm(x))); none: x + f(x)."""
        residual = hidden if self.stack(name).residual else np.zeros_like(hidden)
        match self.config.norm_placement:
            case "pre":
                return residual + compute(self.norm(hidden, f"{path}_norm"))
            case "post":
                return self.norm(residual + compute(hidden), f"{path}_norm")
            case "both":
                return residual + self.norm(compute(self.norm(hidden, f"{path}_norm")), f"{path}_output_norm")
        return residual + compute(hidden)

    def norm(self, hidden: Array, path: str) -> Array:
        """Layer norm (Ba et al. 2016)."""
        centred = hidden - hidden.mean(1, keepdims=True)
        deviation = np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + self.config.norm_eps)
        return centred / deviation * self.weights[f"{path}.weight"] + self.weights[f"{path}.bias"]

    def linear(self, hidden: Array, path: str) -> Array:
        return hidden @ self.weights[f"{path}.weight"].T + self.weights[f"{path}.bias"]

    def feed_forward(self, path: str, hidden: Array) -> Array:
        inner = ACTIVATIONS[self.config.activation](self.linear(hidden, f"{path}.feed_forward.up"))
        return self.linear(inner, f"{path}.feed_forward.down")

    # ---- attention

    def attend(self, name: str, layer: int, hidden: Array, source: Array | None = None) -> Array:
        """Self-attention, or cross-attention to a source: softmax(q·k / √d_k) v with what the settings change."""
        stack = self.stack(name)
        num_heads = stack.num_heads
        key_size = stack.head_size or self.config.hidden_size // num_heads
        value_size = stack.value_size or key_size
        if source is None:
            path = f"{name}.layers.{layer}.attention"
            widths = [num_heads * key_size, num_heads * key_size]
            query, key, value = np.split(self.linear(hidden, f"{path}.qkv"), np.cumsum(widths), axis=1)
        else:
            path = f"{name}.layers.{layer}.cross_attention"
            query = self.linear(hidden, f"{path}.query")
            key, value = np.split(self.linear(source, f"{path}.key_value"), [num_heads * key_size], axis=1)
        allowed = self.allowed(name, layer, len(query)) if source is None else np.ones((len(query), len(key)), bool)
        scale = stack.attention_scale or 1 / math.sqrt(key_size)
        maps = []
        merged = []
        for head in range(num_heads):
            head_query = query[:, head * key_size : (head + 1) * key_size]
            head_key = key[:, head * key_size : (head + 1) * key_size]
            bias = 0.0
            if source is None:
                bias = self.bias(name, head, len(query))
                if self.config.positions == "rotary":
                    head_query = rotate(head_query)
                    head_key = rotate(head_key)
            scores = (head_query @ head_key.T * scale + bias) / stack.attention_temperature
            weights = normalize(scores, allowed, stack)
            maps.append(weights)
            merged.append(weights @ value[:, head * value_size : (head + 1) * value_size])
        self.attention[f"{name}.{layer}.{'self' if source is None else 'cross'}"] = maps
        return self.linear(np.concatenate(merged, axis=1), f"{path}.out")

    def allowed(self, name: str, layer: int, length: int) -> NDArray[np.bool_]:
        """Which keys the queries of a layer attend to."""
        config = self.config
        distance = np.arange(length)[:, None] - np.arange(length)
        allowed = np.ones((length, length), bool)
        is_global = config.family == "bert" and layer % config.global_every == 0
        if config.attention_window and not is_global:
            allowed &= np.abs(distance) <= config.attention_window
        if name == "decoder":
            allowed &= distance >= 0
        return allowed

    def bias(self, name: str, head: int, length: int) -> Array | float:
        """What is added to the scores of a head: ALiBi, or the bias of T5."""
        if self.config.positions == "alibi":
            slope = 2.0 ** (-ALIBI_BASE * (head + 1) / self.stack(name).num_heads)
            return -slope * np.abs(np.arange(length)[:, None] - np.arange(length))
        if self.config.positions != "relative":
            return 0.0
        is_causal = name == "decoder"
        scheme = {"bert": "position_embedding", "gpt": "positions"}.get(
            self.config.family, "target_positions" if is_causal else "source_positions"
        )
        table = self.weights[f"{scheme}.relative_attention_bias.weight"]
        buckets = [[t5_bucket(key - query, is_causal) for key in range(length)] for query in range(length)]
        return table[np.array(buckets), head]


def normalize(scores: Array, allowed: NDArray[np.bool_], stack: Any) -> Array:
    """Attention weights of scores [queries, keys], row by row."""
    weights = np.zeros_like(scores)
    for query in range(len(scores)):
        keys = np.flatnonzero(allowed[query])
        row = scores[query, keys]
        match stack.attention_normalization:
            case "softmax":
                weights[query, keys] = softmax(row)
            case "sparsemax":
                weights[query, keys] = project_onto_simplex(row)
            case "top-k":
                best = np.argsort(row)[-stack.attention_top_k :]
                weights[query, keys[best]] = softmax(row[best])
            case "uniform":
                weights[query, keys] = 1 / len(keys)
    return weights


def softmax(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def project_onto_simplex(scores: Array) -> Array:
    """Sparsemax by bisection of the threshold."""
    low = scores.min() - 1
    high = scores.max()
    for _ in range(BISECTIONS):
        threshold = (low + high) / 2
        if np.maximum(scores - threshold, 0).sum() > 1:
            low = threshold
        else:
            high = threshold
    return np.maximum(scores - (low + high) / 2, 0)


def sinusoids(length: int, width: int) -> Array:
    """Sines, then cosines, of wavelengths from 2π to 2π · 10,000."""
    angles = np.arange(length)[:, None] / 10_000 ** (2 * np.arange(width // 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def interleave(codes: Array) -> Array:
    """Sines at even dimensions, cosines at odd ones (Vaswani et al. 2017, section 3.5)."""
    interleaved = np.empty_like(codes)
    interleaved[:, 0::2], interleaved[:, 1::2] = np.split(codes, 2, axis=1)
    return interleaved


def rotate(heads: Array) -> Array:
    """Rotary positions: the halves of a head are real and imaginary parts, turned by an angle for each position."""
    half = heads.shape[1] // 2
    angles = np.arange(len(heads))[:, None] / 10_000 ** (np.arange(half) / half)
    turned = (heads[:, :half] + 1j * heads[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=1)


def t5_bucket(offset: int, is_causal: bool) -> int:
    """Bucket of a key `offset` tokens after its query: single distances first, then logarithmic ones."""
    if is_causal:
        first = 0
        num_buckets = NUM_BUCKETS
        distance = max(-offset, 0)
    else:
        num_buckets = NUM_BUCKETS // 2
        first = num_buckets if offset > 0 else 0
        distance = abs(offset)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(MAX_DISTANCE / exact)
    return first + min(exact + int(share * (num_buckets - exact)), num_buckets - 1)


def _gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _gelu_tanh(x: Array) -> Array:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
