"""Models compute on the device of their weights: every tensor that a forward or backward pass makes is there.

No test machine has a GPU. Torch's `meta` device stands for one: its tensors have shapes, but no values, and an operator
with tensors of two devices is an error. Where the host reads a value, `UnknownValues` gives it a small number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.attention.dropout import Noise
from regard.config.models import BertConfig, GptConfig, StackConfig, TransformerConfig
from regard.config.rnn_models import Seq2SeqConfig
from regard.config.settings import Config
from regard.models import build_model
from regard.models.base import EncoderDecoder
from regard.models.bert import Bert
from regard.models.gpt import Gpt
from regard.packed_tokens import Tokens

STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=12)
VALUES = {Tensor.item: 3, Tensor.__int__: 3, Tensor.__bool__: False}
SOURCE = Tokens.from_rows([[5, 6, 7, 1], [8, 1]])
TARGET = Tokens.from_rows([[9, 4], [6, 7, 8]])
VOCABULARIES = {"source_vocab_size": 19, "target_vocab_size": 19}
RECURRENT = {**VOCABULARIES, "embedding_size": 8, "hidden_size": 8}
TRANSFORMER = {**VOCABULARIES, "hidden_size": 8, "encoder": STACK, "decoder": STACK, "max_positions": 40}


class UnknownValues(TorchFunctionMode):
    """Gives the values of tensors that have none."""

    def __torch_function__(
        self,
        function: Any,
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        if function in VALUES and arguments[0].device.type == "meta":
            return VALUES[function]
        if function is Tensor.tolist and arguments[0].device.type == "meta":
            return torch.full(arguments[0].shape, 3).tolist()
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(
    "config",
    [
        Seq2SeqConfig(**RECURRENT, attention="none"),
        *(Seq2SeqConfig(**RECURRENT, input_feeding=feeding) for feeding in ("none", "context", "output")),
        *(TransformerConfig(**TRANSFORMER, positions=positions) for positions in ("sinusoidal", "rotary", "alibi")),
    ],
)
def test_an_encoder_decoder_makes_no_tensor_on_another_device(config: Config) -> None:
    model = build_model(config).to("meta")
    assert isinstance(model, EncoderDecoder)
    with UnknownValues():
        loss, _ = model.loss(SOURCE, TARGET, noise=Noise(1, 1))
        loss.backward()
    assert loss.device.type == "meta"
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("attention_window", [0, 2])
def test_an_encoder_makes_no_tensor_on_another_device(attention_window: int) -> None:
    config = BertConfig(vocab_size=19, hidden_size=8, stack=STACK, max_positions=24, head="label", num_labels=2)
    model = build_model(config.override({"attention_window": attention_window})).to("meta")
    assert isinstance(model, Bert)
    with UnknownValues():
        ids, packed = model.to_tensors(SOURCE)
        logits = model.head_logits(
            model(ids, packed, model.token_type_tensor(SOURCE), Noise(1, 1)), packed, Noise(1, 1)
        )
        logits.sum().backward()
    assert logits.device.type == "meta"


def test_a_causal_model_makes_no_tensor_on_another_device() -> None:
    model = build_model(GptConfig(vocab_size=19, hidden_size=8, stack=STACK, max_positions=24)).to("meta")
    assert isinstance(model, Gpt)
    with UnknownValues():
        assert model.logits(SOURCE).device.type == "meta"
