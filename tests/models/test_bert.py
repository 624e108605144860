"""Settings that encoders alone have: one direction, and poolings of a label head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.packed_tokens import Tokens
from tests.checkpoint.samples import tokenizers
from tests.parts import build

ROWS = [[5, 6, 7, 8, 9, 4], [9, 3], [4, 4, 7]]


def test_a_causal_encoder_ignores_later_tokens() -> None:
    model = build("bert", {"causal": True})
    short = model.encode(Tokens.from_rows([[5, 6, 7]]))
    long = Tokens.from_rows([[5, 6, 7, 8, 9]])
    np.testing.assert_allclose(model.encode(long)[:3], short, atol=1e-5)
    both_directions = build("bert", {})
    difference = both_directions.encode(long)[:3] - both_directions.encode(Tokens.from_rows([[5, 6, 7]]))
    assert np.abs(difference).max() > 1e-3


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("pooling", ["first", "last", "mean", "attention"])
def test_poolings_of_a_label_head(tmp_path: Path, pooling: str, pooler: bool) -> None:
    tokenizer = tokenizers(shared=True)["source"]
    settings = {"head": "label", "num_labels": 3, "pooling": pooling, "pooler": pooler}
    model = build("bert", settings, vocab_size=tokenizer.vocab_size)
    tokens = Tokens.from_rows(ROWS)
    hidden = torch.from_numpy(model.encode(tokens)).split(tokens.lengths.tolist())
    pooled = []
    for states in hidden:
        if pooling == "attention":
            weights = torch.softmax(torch.tanh(model.pooling.key(states)) @ model.pooling.query.weight[0], 0)
            pooled.append(weights @ states)
        else:
            pooled.append({"first": states[0], "last": states[-1], "mean": states.mean(0)}[pooling])
    vectors = torch.stack(pooled)
    if pooler:
        vectors = torch.tanh(model.pooler(vectors))
    np.testing.assert_allclose(model.logits(tokens), model.classifier(vectors).detach(), atol=1e-5)
    labels = ("a", "b", "c")
    save_encoder(
        tmp_path, model.config, model.state_dict(), tokenizer=tokenizer, task="", metadata={}, card="", labels=labels
    )
    loaded = load_encoder(tmp_path)
    assert loaded.config == model.config and loaded.labels == labels
