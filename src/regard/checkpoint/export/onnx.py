"""An encoder as an ONNX graph, drawn operator by operator: texts of any number and length in, states or scores out.

Inputs are named as others name them: `input_ids`, `attention_mask` and, where there are types, `token_type_ids`, each
[batch, length]. Outputs are `logits`, or `start_logits` and `end_logits`, or `last_hidden_state` and `pooler_output`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.config.models import BertConfig
from regard.errors import UsageError

FILE = "model.onnx"
Shape = Sequence[str | int]  # sizes, and names of those that vary
_OPERATORS, _FORMAT = 20, 9  # versions of the operators and of the file, which run-times since 2024 read
_LARGEST = 2**31 - 2**20  # bytes of one file
_FLOAT, _BOOL = 1, 9  # kinds of numbers, as ONNX counts them
_HIDDEN = float(np.finfo(np.float32).min)  # what is added to the scores of what nobody may look at


class _Graph:
    """Operators in the order in which they compute, and the weights that they use."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        from onnx import helper, numpy_helper

        self._helper, self._array = helper, numpy_helper
        self._weights = weights
        self.nodes: list[Any] = []
        self.initial: dict[str, Any] = {}

    def add(self, operator: str, *given: str, name: str = "", **settings: Any) -> str:
        """Add an operator, return the name of its result."""
        made = name or f"{operator}.{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(operator, given, [made], **settings))
        return made

    def constant(self, values: Any, kind: type = np.int64) -> str:
        """Return the name of a constant."""
        array: NDArray[Any] = np.asarray(values, dtype=kind)
        return self._keep(f"constant.{array.dtype}.{array.shape}.{array.tolist()}", array)

    def weight(self, name: str, *, turned: bool = False) -> str:
        """Return the name of one of the model's weights; matrices that states are multiplied with are turned over."""
        tensor = self._weights[name]
        return self._keep(name, (tensor.t() if turned else tensor).contiguous().numpy())

    def _keep(self, name: str, array: NDArray[Any]) -> str:
        if name not in self.initial:
            self.initial[name] = self._array.from_array(array, name)
        return name

    def halves(self, states: str, width: int) -> list[str]:
        """Return the left and the right half of each state of this width."""
        edges = [self.constant([at]) for at in (0, width // 2, width, -1)]
        return [self.add("Slice", states, edges[side], edges[side + 1], edges[3]) for side in (0, 1)]

    def linear(self, states: str, name: str) -> str:
        made = self.add("MatMul", states, self.weight(f"{name}.weight", turned=True))
        return self.add("Add", made, self.weight(f"{name}.bias")) if f"{name}.bias" in self._weights else made

    def norm(self, states: str, name: str, epsilon: float) -> str:
        """Norm states; where the model has no such norm, they stay as they are."""
        parts = [self.weight(part) for part in (f"{name}.weight", f"{name}.bias") if part in self._weights]
        return self.add("LayerNormalization", states, *parts, axis=-1, epsilon=epsilon) if parts else states

    def activation(self, states: str, name: str) -> str:
        match name:
            case "relu" | "tanh":
                return self.add(name.capitalize(), states)
            case "gelu" | "gelu_tanh":
                return self.add("Gelu", states, approximate="tanh" if name == "gelu_tanh" else "none")
        slope = states if name == "silu" else self.add("Mul", states, self.constant(1.702, np.float32))
        return self.add("Mul", states, self.add("Sigmoid", slope))


class _View(NamedTuple):
    """What a layer is told beside the states."""

    hidden: str  # what is added to scores, [B|1, 1, T|1, T]
    turns: tuple[str, str] | None  # cosines and sines that turn queries and keys, [T, d/2]


class _Drawing:
    """The graph of one encoder."""

    def __init__(self, config: BertConfig, weights: Mapping[str, Tensor]) -> None:
        self.config, self.graph = config, _Graph(weights)
        self.types = config.num_token_types > 1
        self.places = self._places()
        self.outputs: dict[str, Shape] = {}
        states = self._states()
        for name, (result, shape) in self._results(states).items():
            self.outputs[self.graph.add("Identity", result, name=name)] = shape

    @property
    def inputs(self) -> list[str]:
        return ["input_ids", "attention_mask", *(["token_type_ids"] if self.types else [])]

    def _places(self) -> str:
        """Return the numbers of a row's places, [T]."""
        graph = self.graph
        length = graph.add("Squeeze", graph.add("Shape", "input_ids", start=1, end=2))
        return graph.add("Range", graph.constant(0), length, graph.constant(1))

    def _embedded(self) -> str:
        graph, config = self.graph, self.config
        states = graph.add("Gather", graph.weight("words.weight"), "input_ids")
        if config.scale_embedding:
            states = graph.add("Mul", states, graph.constant(math.sqrt(config.hidden_size), np.float32))
        if config.positions == "learned":
            rows = graph.add("Add", self.places, graph.constant(config.position_offset))
            states = graph.add("Add", states, graph.add("Gather", graph.weight("places.weight"), rows))
        if config.num_token_types:
            kinds = "token_type_ids" if self.types else graph.constant([[0]])
            states = graph.add("Add", states, graph.add("Gather", graph.weight("types.weight"), kinds))
        states = graph.norm(states, "norm", config.norm_eps)
        return graph.linear(states, "widening") if config.embedding_size else states

    def _states(self) -> str:
        graph, config = self.graph, self.config
        states = self._embedded()
        far, near = self._views()
        for layer in range(config.stack.num_layers):
            block = f"stack.blocks.{config.layer_group(layer)}"
            view = near if config.is_local(layer) else far
            states = self._added(states, f"{block}.attention_norm", partial(self._look, block=block, view=view))
            states = self._added(states, f"{block}.feedforward_norm", partial(self._think, name=f"{block}.feedforward"))
        return graph.norm(states, "stack.norm", config.norm_eps) if config.norm == "before" else states

    def _views(self) -> tuple[_View, _View]:
        """Return what layers are told that look at whole rows, and those that look near."""
        graph, config = self.graph, self.config
        seen = graph.add("Unsqueeze", graph.add("Cast", "attention_mask", to=_BOOL), graph.constant([1, 2]))
        far = _View(self._hidden(seen), self._turns(config.rope_theta))
        if not config.attention_window:
            return far, far
        across = graph.add("Sub", graph.add("Unsqueeze", self.places, graph.constant([1])), self.places)
        close = graph.add("LessOrEqual", graph.add("Abs", across), graph.constant(config.attention_window))
        return far, _View(self._hidden(graph.add("And", seen, close)), self._turns(config.local_rope_theta))

    def _hidden(self, seen: str) -> str:
        return self.graph.add(
            "Where", seen, self.graph.constant(0, np.float32), self.graph.constant(_HIDDEN, np.float32)
        )

    def _turns(self, base: float) -> tuple[str, str] | None:
        graph, half = self.graph, self.config.hidden_size // self.config.stack.num_heads // 2
        if self.config.positions != "rotary":
            return None
        rates = np.float32(base) ** -(np.arange(half, dtype=np.float32) / np.float32(half))
        places = graph.add("Unsqueeze", graph.add("Cast", self.places, to=_FLOAT), graph.constant([1]))
        angles = graph.add("Mul", places, graph.constant(rates, np.float32))
        return graph.add("Cos", angles), graph.add("Sin", angles)

    def _turned(self, heads: str, turns: tuple[str, str] | None) -> str:
        """Return queries or keys [B, H, T, d] turned by their places."""
        if turns is None:
            return heads
        graph, (cosine, sine) = self.graph, turns
        left, right = graph.halves(heads, self.config.hidden_size // self.config.stack.num_heads)
        first = graph.add("Sub", graph.add("Mul", left, cosine), graph.add("Mul", right, sine))
        second = graph.add("Add", graph.add("Mul", right, cosine), graph.add("Mul", left, sine))
        return graph.add("Concat", first, second, axis=-1)

    def _added(self, states: str, norm: str, part: Callable[[str], str]) -> str:
        graph, epsilon = self.graph, self.config.norm_eps
        if self.config.norm == "before":
            return graph.add("Add", states, part(graph.norm(states, norm, epsilon)))
        return graph.norm(graph.add("Add", states, part(states)), norm, epsilon)

    def _look(self, states: str, block: str, view: _View) -> str:
        graph, config = self.graph, self.config
        heads, width = config.stack.num_heads, config.hidden_size // config.stack.num_heads
        fused = graph.linear(states, f"{block}.attention.qkv")
        split = graph.add("Reshape", fused, graph.constant([0, 0, 3, heads, width]))
        parts = graph.add("Transpose", split, perm=[2, 0, 3, 1, 4])  # [3, B, H, T, d]
        query, key, value = (graph.add("Gather", parts, graph.constant(number)) for number in range(3))
        query, key = self._turned(query, view.turns), self._turned(key, view.turns)
        query = graph.add("Mul", query, graph.constant(width**-0.5, np.float32))
        scores = graph.add("MatMul", query, graph.add("Transpose", key, perm=[0, 1, 3, 2]))
        weights = graph.add("Softmax", graph.add("Add", scores, view.hidden), axis=-1)
        mixed = graph.add("Transpose", graph.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        return graph.linear(
            graph.add("Reshape", mixed, graph.constant([0, 0, config.hidden_size])), f"{block}.attention.out"
        )

    def _think(self, states: str, name: str) -> str:
        graph, config = self.graph, self.config
        inner = graph.linear(states, f"{name}.inner")
        if config.gated:
            left, gate = graph.halves(inner, 2 * config.stack.feed_forward_size)
            active = graph.add("Mul", graph.activation(left, config.activation), gate)
        else:
            active = graph.activation(inner, config.activation)
        return graph.linear(active, f"{name}.outer")

    def _pooled(self, states: str) -> str:
        if self.config.head_transform and self.config.head == "label":
            return self._transformed(self._mean(states) if self.config.pooling == "mean" else self._first(states))
        first = self._first(states)
        return self.graph.activation(self.graph.linear(first, "pooler"), self.config.pooler_activation)

    def _first(self, states: str) -> str:
        return self.graph.add("Gather", states, self.graph.constant(0), axis=1)

    def _mean(self, states: str) -> str:
        graph = self.graph
        there = graph.add("Unsqueeze", graph.add("Cast", "attention_mask", to=_FLOAT), graph.constant([2]))
        sums = (
            graph.add("ReduceSum", part, graph.constant([1]), keepdims=0)
            for part in (graph.add("Mul", states, there), there)
        )
        return graph.add("Div", *sums)

    def _results(self, states: str) -> dict[str, tuple[str, Shape]]:
        """Return what the head gives: for each name the result and its shape."""
        graph, config = self.graph, self.config
        rows: Shape = ["batch", "length"]
        made: dict[str, tuple[str, Shape]]
        match config.head:
            case "plain":
                made = {"last_hidden_state": (states, [*rows, config.hidden_size])}
                if config.has_pooler:
                    made["pooler_output"] = (self._pooled(states), ["batch", config.hidden_size])
                return made
            case "next":
                return {"logits": (graph.linear(self._pooled(states), "next"), ["batch", 2])}
            case "label":
                return {"logits": (graph.linear(self._pooled(states), "output"), ["batch", config.num_labels])}
            case "masked" | "pretraining":
                made = {"logits": (self._words(states), [*rows, config.vocab_size])}
                if config.head == "pretraining":
                    made["seq_relationship_logits"] = (graph.linear(self._pooled(states), "next"), ["batch", 2])
                return made
        if config.head_transform and config.head in ("token", "span"):
            states = self._transformed(states)
        if config.head == "token":
            return {"logits": (graph.linear(states, "output"), [*rows, config.num_labels])}
        if config.span_feed_forward:
            states = graph.norm(graph.add("Add", states, self._think(states, "span")), "span_norm", config.norm_eps)
        scores = graph.linear(states, "output")
        ends = (("start_logits", 0), ("end_logits", 1))
        return {name: (graph.add("Gather", scores, graph.constant(at), axis=2), rows) for name, at in ends}

    def _transformed(self, states: str) -> str:
        dense = self.graph.activation(self.graph.linear(states, "masked.dense"), self.config.activation)
        return self.graph.norm(dense, "masked.norm", self.config.norm_eps)

    def _words(self, states: str) -> str:
        graph, made = self.graph, self._transformed(states)
        if self.config.tie_embeddings:
            table = graph.add("Transpose", graph.weight("words.weight"), perm=[1, 0])
        else:
            table = graph.weight("masked_output.weight", turned=True)
        return graph.add("Add", graph.add("MatMul", made, table), graph.weight("masked_bias"))


def drawn(config: BertConfig, weights: Mapping[str, Tensor], where: str) -> bytes:
    """Return an encoder as the content of an ONNX file; `where` is named in what cannot be written."""
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError:
        raise UsageError("onnx is not installed: `pip install 'regard[onnx]'`") from None
    if config.attention != "full":
        raise UsageError(f"{where} cannot be written for ONNX: attention in blocks, where only all at all is written")
    size = sum(tensor.numel() * 4 for tensor in weights.values())
    if size > _LARGEST:
        raise UsageError(f"{where} cannot be written for ONNX: {size:,} bytes of weights, more than one file holds")
    drawing = _Drawing(config, {name: tensor.detach().cpu().float() for name, tensor in weights.items()})
    graph = helper.make_graph(
        drawing.graph.nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in drawing.inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in drawing.outputs.items()],
        [*drawing.graph.initial.values()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPERATORS)], ir_version=_FORMAT)
    made.producer_name = "regard"
    onnx.checker.check_model(made)
    content: bytes = made.SerializeToString()
    return content
