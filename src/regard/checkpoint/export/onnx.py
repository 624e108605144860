"""Encoders as ONNX graphs, built operator by operator: batches of any size and length in, hidden states or logits out.

Inputs have the names of transformers: `input_ids`, `attention_mask` and, where there are token types, `token_type_ids`,
each [batch, length]. Outputs are `logits`, or `start_logits` and `end_logits`, or `last_hidden_state` and
`pooler_output`.
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
_OPSET_VERSION = 20  # which run-times since 2024 read
_IR_VERSION = 9
_MAX_BYTES = 2**31 - 2**20  # of one file
_FLOAT = 1  # data types, as ONNX numbers them
_BOOL = 9
_MASKED = float(np.finfo(np.float32).min)  # added to the scores of masked keys


class _Graph:
    """Operators in the order of computation, and the weights that they use; values are referred to by name."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        from onnx import helper, numpy_helper

        self._make_node = helper.make_node
        self._from_array = numpy_helper.from_array
        self._weights = weights
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add an operator; return the name of its output."""
        output = name or f"{operator}.{len(self.nodes)}"
        self.nodes.append(self._make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, values: Any, dtype: type = np.int64) -> str:
        """Name of a constant."""
        array: NDArray[Any] = np.asarray(values, dtype=dtype)
        return self._add_initializer(f"constant.{array.dtype}.{array.shape}.{array.tolist()}", array)

    def weight(self, name: str, *, transposed: bool = False) -> str:
        """Name of one of the model's weights; matrices of linear layers are transposed."""
        tensor = self._weights[name]
        return self._add_initializer(name, (tensor.t() if transposed else tensor).contiguous().numpy())

    def _add_initializer(self, name: str, array: NDArray[Any]) -> str:
        if name not in self.initializers:
            self.initializers[name] = self._from_array(array, name)
        return name

    def split_half(self, hidden: str, size: int) -> list[str]:
        """Split the last dimension, of this size, into its first and second half."""
        start, middle, end, axis = (self.constant([index]) for index in (0, size // 2, size, -1))
        return [self.add("Slice", hidden, start, middle, axis), self.add("Slice", hidden, middle, end, axis)]

    def linear(self, hidden: str, name: str) -> str:
        output = self.add("MatMul", hidden, self.weight(f"{name}.weight", transposed=True))
        if f"{name}.bias" not in self._weights:
            return output
        return self.add("Add", output, self.weight(f"{name}.bias"))

    def norm(self, hidden: str, name: str, epsilon: float) -> str:
        """LayerNorm; the identity where the model has no such norm."""
        parameters = [self.weight(leaf) for leaf in (f"{name}.weight", f"{name}.bias") if leaf in self._weights]
        if not parameters:
            return hidden
        return self.add("LayerNormalization", hidden, *parameters, axis=-1, epsilon=epsilon)

    def activation(self, hidden: str, name: str) -> str:
        match name:
            case "relu" | "tanh":
                return self.add(name.capitalize(), hidden)
            case "gelu" | "gelu_tanh":
                return self.add("Gelu", hidden, approximate="tanh" if name == "gelu_tanh" else "none")
        scaled = hidden if name == "silu" else self.add("Mul", hidden, self.constant(1.702, np.float32))
        return self.add("Mul", hidden, self.add("Sigmoid", scaled))


class _LayerInputs(NamedTuple):
    """Mask and positional scheme of a layer."""

    mask: str  # added to scores, [batch|1, 1, length|1, length]
    rotation: tuple[str, str] | None  # cosines and sines of rotary positions, [length, head/2]


class _EncoderGraph:
    """ONNX graph of one encoder."""

    def __init__(self, config: BertConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.graph = _Graph(weights)
        self.has_token_types = config.num_token_types > 1
        self.positions = self._build_positions()
        self.outputs: dict[str, Shape] = {}
        hidden = self._encode()
        for name, (output, shape) in self._apply_head(hidden).items():
            self.outputs[self.graph.add("Identity", output, name=name)] = shape

    @property
    def inputs(self) -> list[str]:
        return ["input_ids", "attention_mask", *(["token_type_ids"] if self.has_token_types else [])]

    @property
    def _head_size(self) -> int:
        return self.config.hidden_size // self.config.stack.num_heads

    def _build_positions(self) -> str:
        """Positions of a sequence, [length]."""
        graph = self.graph
        length = graph.add("Squeeze", graph.add("Shape", "input_ids", start=1, end=2))
        return graph.add("Range", graph.constant(0), length, graph.constant(1))

    def _embed(self) -> str:
        graph = self.graph
        config = self.config
        hidden = graph.add("Gather", graph.weight("token_embedding.weight"), "input_ids")
        if config.scale_embedding:
            hidden = graph.add("Mul", hidden, graph.constant(math.sqrt(config.hidden_size), np.float32))
        if config.positions == "learned":
            rows = graph.add("Add", self.positions, graph.constant(config.position_offset))
            hidden = graph.add("Add", hidden, graph.add("Gather", graph.weight("position_embedding.weight"), rows))
        if config.num_token_types:
            token_types = "token_type_ids" if self.has_token_types else graph.constant([[0]])
            hidden = graph.add(
                "Add", hidden, graph.add("Gather", graph.weight("token_type_embedding.weight"), token_types)
            )
        hidden = graph.norm(hidden, "embedding_norm", config.norm_eps)
        return graph.linear(hidden, "embedding_projection") if config.embedding_size else hidden

    def _encode(self) -> str:
        """Hidden states of the last layer, [batch, length, hidden]."""
        config = self.config
        hidden = self._embed()
        global_inputs, local_inputs = self._build_layer_inputs()
        for layer in range(config.stack.num_layers):
            block = f"encoder.layers.{config.layer_group(layer)}"
            inputs = local_inputs if config.is_local(layer) else global_inputs
            self_attend = partial(self._self_attend, block=block, inputs=inputs)
            feed_forward = partial(self._feed_forward, name=f"{block}.feed_forward")
            hidden = self._add_residual(hidden, f"{block}.attention_norm", self_attend)
            hidden = self._add_residual(hidden, f"{block}.feed_forward_norm", feed_forward)
        return self.graph.norm(hidden, "encoder.final_norm", config.norm_eps) if config.norm == "before" else hidden

    def _build_layer_inputs(self) -> tuple[_LayerInputs, _LayerInputs]:
        """Inputs of layers with global and with local attention."""
        graph = self.graph
        config = self.config
        is_token = graph.add("Unsqueeze", graph.add("Cast", "attention_mask", to=_BOOL), graph.constant([1, 2]))
        global_inputs = _LayerInputs(self._additive_mask(is_token), self._rotation(config.rope_theta))
        if not config.attention_window:
            return global_inputs, global_inputs
        distance = graph.add("Sub", graph.add("Unsqueeze", self.positions, graph.constant([1])), self.positions)
        is_near = graph.add("LessOrEqual", graph.add("Abs", distance), graph.constant(config.attention_window))
        local_mask = self._additive_mask(graph.add("And", is_token, is_near))
        return global_inputs, _LayerInputs(local_mask, self._rotation(config.local_rope_theta))

    def _additive_mask(self, is_visible: str) -> str:
        zero = self.graph.constant(0, np.float32)
        masked = self.graph.constant(_MASKED, np.float32)
        return self.graph.add("Where", is_visible, zero, masked)

    def _rotation(self, theta: float) -> tuple[str, str] | None:
        """Cosines and sines of rotary positions (Su et al. 2021)."""
        graph = self.graph
        if self.config.positions != "rotary":
            return None
        half = self._head_size // 2
        frequencies = np.float32(theta) ** -(np.arange(half, dtype=np.float32) / np.float32(half))
        positions = graph.add("Unsqueeze", graph.add("Cast", self.positions, to=_FLOAT), graph.constant([1]))
        angles = graph.add("Mul", positions, graph.constant(frequencies, np.float32))
        return graph.add("Cos", angles), graph.add("Sin", angles)

    def _rotate(self, heads: str, rotation: tuple[str, str] | None) -> str:
        """Rotate queries or keys by their positions, [batch, heads, length, head]."""
        if rotation is None:
            return heads
        graph = self.graph
        cosine, sine = rotation
        left, right = graph.split_half(heads, self._head_size)
        rotated_left = graph.add("Sub", graph.add("Mul", left, cosine), graph.add("Mul", right, sine))
        rotated_right = graph.add("Add", graph.add("Mul", right, cosine), graph.add("Mul", left, sine))
        return graph.add("Concat", rotated_left, rotated_right, axis=-1)

    def _add_residual(self, hidden: str, norm: str, sublayer: Callable[[str], str]) -> str:
        graph = self.graph
        epsilon = self.config.norm_eps
        if self.config.norm == "before":
            return graph.add("Add", hidden, sublayer(graph.norm(hidden, norm, epsilon)))
        return graph.norm(graph.add("Add", hidden, sublayer(hidden)), norm, epsilon)

    def _self_attend(self, hidden: str, block: str, inputs: _LayerInputs) -> str:
        graph = self.graph
        num_heads = self.config.stack.num_heads
        qkv = graph.linear(hidden, f"{block}.attention.qkv")
        split = graph.add("Reshape", qkv, graph.constant([0, 0, 3, num_heads, self._head_size]))
        stacked = graph.add("Transpose", split, perm=[2, 0, 3, 1, 4])  # [3, batch, heads, length, head]
        query, key, value = (graph.add("Gather", stacked, graph.constant(index)) for index in range(3))
        query = self._rotate(query, inputs.rotation)
        key = self._rotate(key, inputs.rotation)
        query = graph.add("Mul", query, graph.constant(self._head_size**-0.5, np.float32))
        scores = graph.add("MatMul", query, graph.add("Transpose", key, perm=[0, 1, 3, 2]))
        weights = graph.add("Softmax", graph.add("Add", scores, inputs.mask), axis=-1)
        context = graph.add("Transpose", graph.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        joined = graph.add("Reshape", context, graph.constant([0, 0, self.config.hidden_size]))
        return graph.linear(joined, f"{block}.attention.out")

    def _feed_forward(self, hidden: str, name: str) -> str:
        graph = self.graph
        config = self.config
        inner = graph.linear(hidden, f"{name}.up")
        if config.gated:
            left, gate = graph.split_half(inner, 2 * config.stack.feed_forward_size)
            active = graph.add("Mul", graph.activation(left, config.activation), gate)
        else:
            active = graph.activation(inner, config.activation)
        return graph.linear(active, f"{name}.down")

    def _pool(self, hidden: str) -> str:
        """Pooled state of each sequence, [batch, hidden]."""
        if self.config.head_transform and self.config.head == "label":
            return self._transform(
                self._pool_mean(hidden) if self.config.pooling == "mean" else self._pool_first(hidden)
            )
        first = self._pool_first(hidden)
        return self.graph.activation(self.graph.linear(first, "pooler"), self.config.pooler_activation)

    def _pool_first(self, hidden: str) -> str:
        return self.graph.add("Gather", hidden, self.graph.constant(0), axis=1)

    def _pool_mean(self, hidden: str) -> str:
        graph = self.graph
        is_token = graph.add("Unsqueeze", graph.add("Cast", "attention_mask", to=_FLOAT), graph.constant([2]))
        masked_hidden = graph.add("Mul", hidden, is_token)
        total = graph.add("ReduceSum", masked_hidden, graph.constant([1]), keepdims=0)
        count = graph.add("ReduceSum", is_token, graph.constant([1]), keepdims=0)
        return graph.add("Div", total, count)

    def _apply_head(self, hidden: str) -> dict[str, tuple[str, Shape]]:
        """Outputs of the head: name → value and its shape."""
        graph = self.graph
        config = self.config
        tokens: Shape = ["batch", "length"]
        outputs: dict[str, tuple[str, Shape]]
        match config.head:
            case "plain":
                outputs = {"last_hidden_state": (hidden, [*tokens, config.hidden_size])}
                if config.has_pooler:
                    outputs["pooler_output"] = (self._pool(hidden), ["batch", config.hidden_size])
                return outputs
            case "next":
                return {"logits": (graph.linear(self._pool(hidden), "next_sentence"), ["batch", 2])}
            case "label":
                return {"logits": (graph.linear(self._pool(hidden), "classifier"), ["batch", config.num_labels])}
            case "masked" | "pretraining":
                outputs = {"logits": (self._predict_tokens(hidden), [*tokens, config.vocab_size])}
                if config.head == "pretraining":
                    outputs["seq_relationship_logits"] = (
                        graph.linear(self._pool(hidden), "next_sentence"),
                        ["batch", 2],
                    )
                return outputs
        if config.head_transform and config.head in ("token", "span"):
            hidden = self._transform(hidden)
        if config.head == "token":
            return {"logits": (graph.linear(hidden, "classifier"), [*tokens, config.num_labels])}
        if config.span_feed_forward:
            residual = graph.add("Add", hidden, self._feed_forward(hidden, "span_feed_forward"))
            hidden = graph.norm(residual, "span_norm", config.norm_eps)
        logits = graph.linear(hidden, "classifier")  # [batch, length, 2]
        start = graph.add("Gather", logits, graph.constant(0), axis=2)
        end = graph.add("Gather", logits, graph.constant(1), axis=2)
        return {"start_logits": (start, tokens), "end_logits": (end, tokens)}

    def _transform(self, hidden: str) -> str:
        """Transform before the output embedding (dense, activation, norm)."""
        dense = self.graph.activation(self.graph.linear(hidden, "mlm_head.dense"), self.config.activation)
        return self.graph.norm(dense, "mlm_head.norm", self.config.norm_eps)

    def _predict_tokens(self, hidden: str) -> str:
        """Logits of the vocabulary, [batch, length, vocabulary]."""
        graph = self.graph
        transformed = self._transform(hidden)
        if self.config.tie_embeddings:
            embedding = graph.add("Transpose", graph.weight("token_embedding.weight"), perm=[1, 0])
        else:
            embedding = graph.weight("mlm_head_output.weight", transposed=True)
        return graph.add("Add", graph.add("MatMul", transformed, embedding), graph.weight("mlm_head_bias"))


def serialize_onnx(config: BertConfig, weights: Mapping[str, Tensor], where: str) -> bytes:
    """Content of the ONNX file of an encoder; errors name `where`."""
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError:
        raise UsageError("onnx is not installed: `pip install 'regard[onnx]'`") from None
    if config.attention != "full":
        raise UsageError(f"{where} cannot be written for ONNX: block-sparse attention; only full attention can")
    size = sum(tensor.numel() * 4 for tensor in weights.values())
    if size > _MAX_BYTES:
        raise UsageError(f"{where} cannot be written for ONNX: {size:,} bytes of weights, more than one file holds")
    encoder = _EncoderGraph(config, {name: tensor.detach().cpu().float() for name, tensor in weights.items()})
    graph = helper.make_graph(
        encoder.graph.nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in encoder.inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in encoder.outputs.items()],
        [*encoder.graph.initializers.values()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET_VERSION)], ir_version=_IR_VERSION)
    model.producer_name = "regard"
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content
