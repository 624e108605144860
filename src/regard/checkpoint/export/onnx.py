"""Encoders and causal language models as ONNX graphs, exported by torch for batches of any size and length.

Inputs have the names of transformers: `input_ids`, `attention_mask` and, where there are token types, `token_type_ids`,
each [batch, length]. Outputs are `logits`, or `start_logits` and `end_logits`, or `last_hidden_state` and
`pooler_output`.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.padded_batch import PaddedBatch
from regard.config.models import BertConfig, GptConfig
from regard.errors import UsageError
from regard.models.base import Model, uninitialized
from regard.models.bert import Bert
from regard.models.gpt import Gpt

FILE = "model.onnx"
TOKEN_HEADS = ("masked", "pretraining", "token", "span")  # heads with logits of each token
_OPSET_VERSION = 20  # which run-times since 2024 read
_IR_VERSION = 9
_MAX_BYTES = 2**31 - 2**20  # of one file
_EXAMPLE_SHAPE = (2, 3)  # batch and length with which the model is traced; both vary in the graph
_LOGGERS = ("torch", "onnxscript", "onnx_ir")


class PaddedEncoder(nn.Module):
    """An encoder with padded inputs and named outputs, as in transformers."""

    def __init__(self, model: Bert) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Outputs of the head by name; inputs are [B, T]."""
        model = self.model
        batch = PaddedBatch(attention_mask)
        token_types = None if token_type_ids is None else token_type_ids.flatten()
        hidden = model(input_ids.flatten(), batch, token_types)
        head = model.config.head
        if head == "plain":
            outputs = {"last_hidden_state": batch.pad(hidden)}
            if model.config.has_pooler:
                outputs["pooler_output"] = model.pool(hidden, batch)
            return outputs
        logits = model.output_logits(hidden, batch)
        if head in TOKEN_HEADS:
            logits = batch.pad(logits)
        if head == "span":
            start_logits, end_logits = logits.unbind(-1)
            return {"start_logits": start_logits, "end_logits": end_logits}
        if head == "pretraining":
            return {"logits": logits, "seq_relationship_logits": model.next_sentence_logits(hidden, batch)}
        return {"logits": logits}


class PaddedCausalLM(nn.Module):
    """A causal language model with padded inputs, as in transformers."""

    def __init__(self, model: Gpt) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Logits of the token after each token, [B, T, V]; inputs are [B, T]."""
        batch = PaddedBatch(attention_mask)
        hidden = self.model.decode(input_ids.flatten(), batch)
        return {"logits": batch.pad(nn.functional.linear(hidden, self.model.output_weight))}


def serialize_encoder(config: BertConfig, weights: Mapping[str, Tensor], where: str) -> bytes:
    """Content of the ONNX file of an encoder; errors name `where`."""
    if config.attention != "full":
        raise UsageError(f"{where} cannot be written for ONNX: block-sparse attention; only full attention can")
    input_names = ["input_ids", "attention_mask"]
    if config.num_token_types > 1:
        input_names.append("token_type_ids")
    with uninitialized():
        model = Bert(config)
    _load_weights(model, weights, where)
    return _serialize(PaddedEncoder(model), input_names)


def serialize_causal_lm(config: GptConfig, weights: Mapping[str, Tensor], where: str) -> bytes:
    """Content of the ONNX file of a causal language model; errors name `where`."""
    model = Gpt(config)
    _load_weights(model, weights, where)
    return _serialize(PaddedCausalLM(model), ["input_ids", "attention_mask"])


def _load_weights(model: Model, weights: Mapping[str, Tensor], where: str) -> None:
    """Give a model these weights, in float32, if one file holds them."""
    size = sum(tensor.numel() * 4 for tensor in weights.values())
    if size > _MAX_BYTES:
        raise UsageError(f"{where} cannot be written for ONNX: {size:,} bytes of weights, more than one file holds")
    model.load_state_dict({name: tensor.detach().cpu().float() for name, tensor in weights.items()}, assign=True)


def _serialize(module: nn.Module, input_names: list[str]) -> bytes:
    """Export a module with inputs [batch, length], both of any size; it returns its outputs by name."""
    onnx, ir_passes = _import_onnx()
    module.eval().requires_grad_(False)
    arguments = {name: torch.ones(_EXAMPLE_SHAPE, dtype=torch.int64) for name in input_names}
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with _silence(), torch.no_grad():
        program = torch.onnx.export(
            module,
            kwargs=arguments,
            input_names=input_names,
            output_names=[*module(**arguments)],
            dynamic_shapes=dict.fromkeys(input_names, axes),
            opset_version=_OPSET_VERSION,
            dynamo=True,
            optimize=True,
            verbose=False,
        )
    assert program is not None
    graph = program.model
    ir_passes.ClearMetadataAndDocStringPass()(graph)  # otherwise every operator has the stack of its call
    graph.ir_version = _IR_VERSION
    graph.producer_name = "regard"
    proto = program.model_proto
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content


def _import_onnx() -> tuple[Any, Any]:
    """The packages `onnx` and, of those that torch's exporter needs, the passes over a graph."""
    for name in ("onnx", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise UsageError(f"{name} is not installed: `pip install 'regard[onnx]'`") from None
    return importlib.import_module("onnx"), importlib.import_module("onnx_ir.passes.common")


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the exporter's warnings and log messages."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
