"""BigBird folders: states and scores are those of transformers below, at and above the length where blocks begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.config.models import BertConfig, StackConfig
from regard.errors import CheckpointError
from regard.models import build_model
from regard.models.bert import initialize_bert
from regard.tokens import Tokens

transformers = pytest.importorskip("transformers")

BLOCK, RANDOM = 4, 2
THRESHOLD = (5 + 2 * RANDOM) * BLOCK  # up to here everybody looks at everybody
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(40))]
SEPARATOR = PIECES.index("[SEP]")
SIZES = {
    "vocab_size": len(PIECES),
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 18,
    "max_position_embeddings": 120,
    "block_size": BLOCK,
    "num_random_blocks": RANDOM,
    "sep_token_id": SEPARATOR,
}
CLASSES = {
    "plain": "BigBirdModel",
    "masked": "BigBirdForMaskedLM",
    "pretraining": "BigBirdForPreTraining",
    "label": "BigBirdForSequenceClassification",
    "token": "BigBirdForTokenClassification",
    "span": "BigBirdForQuestionAnswering",
}


def theirs(folder: Path, head: str = "plain", **changes: Any) -> Any:
    config = transformers.BigBirdConfig(**{**SIZES, **changes})
    torch.manual_seed(4)
    model = getattr(transformers, CLASSES[head])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return model


def reopened(folder: Path, head: str) -> Any:
    """Their model anew: after a short row it would stay with full attention."""
    return getattr(transformers, CLASSES[head]).from_pretrained(folder).eval()


def row(length: int) -> list[int]:
    ids: list[int] = np.random.default_rng(length).integers(5, len(PIECES), length).tolist()
    ids[length // 3] = SEPARATOR
    return ids


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("changes", [{}, {"rescale_embeddings": True, "hidden_act": "relu"}], ids=["usual", "other"])
@torch.no_grad()
def test_states_are_theirs_at_any_length(tmp_path: Path, changes: dict[str, Any]) -> None:
    theirs(tmp_path, **changes)
    model = load_encoder(tmp_path).model().eval()
    lengths = [7, THRESHOLD, THRESHOLD + 1, THRESHOLD + BLOCK, 61, 120]
    rows = [row(length) for length in lengths]
    together = np.split(model.encode(Tokens.from_rows(rows)), np.cumsum(lengths)[:-1])
    packed = np.split(model.pack().encode(Tokens.from_rows(rows)), np.cumsum(lengths)[:-1])
    for ids, found, again in zip(rows, together, packed, strict=True):
        reference = reopened(tmp_path, "plain")
        wanted = reference(torch.tensor([ids]))
        close(found, wanted.last_hidden_state[0].numpy())
        close(again, wanted.last_hidden_state[0].numpy())
        close(model.pooler_output(Tokens.from_rows([ids]))[0], wanted.pooler_output[0].numpy())


@pytest.mark.parametrize("head", [head for head in CLASSES if head != "plain"])
@torch.no_grad()
def test_scores_are_theirs_and_folders_open_there_with_nothing_missing(tmp_path: Path, head: str) -> None:
    theirs(tmp_path / "in", head)
    loaded = load_encoder(tmp_path / "in")
    assert loaded.config.head == head and not loaded.report.missing
    model = loaded.model().eval()
    out = tmp_path / "out"
    facts: dict[str, Any] = {
        "tokenizer": loaded.tokenizer,
        "task": "",
        "facts": {},
        "card": "",
        "labels": loaded.labels,
    }
    kind = save_encoder(out, loaded.config, loaded.weights, kind=loaded.model_type, fields=loaded.hf_config, **facts)
    assert kind == "big_bird"
    again, info = getattr(transformers, CLASSES[head]).from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    for length in (20, 90):
        ids = row(length)
        types = (np.arange(length) > length // 3).astype(np.int32)
        given = Tokens.from_rows([ids])
        for reference in (reopened(tmp_path / "in", head), again.eval() if length > 20 else reopened(out, head)):
            found = reference(torch.tensor([ids]), token_type_ids=torch.tensor(types[None].astype(np.int64)))
            scores = model.logits(given, types)
            if head == "span":
                passage = slice(length // 3 + 1, None)  # of the question theirs are pushed below all others
                close(scores[passage, 0], found.start_logits[0, passage].numpy())
                close(scores[passage, 1], found.end_logits[0, passage].numpy())
            else:
                close(
                    scores,
                    (found.prediction_logits if head == "pretraining" else found.logits).numpy().reshape(scores.shape),
                )


@torch.no_grad()
def test_full_attention_is_read_as_such(tmp_path: Path) -> None:
    reference = theirs(tmp_path, attention_type="original_full")
    loaded = load_encoder(tmp_path)
    assert loaded.config.attention == "full"
    close(
        loaded.model().encode(Tokens.from_rows([row(90)])),
        reference(torch.tensor([row(90)])).last_hidden_state[0].numpy(),
    )


def test_without_biases_it_is_refused(tmp_path: Path) -> None:
    theirs(tmp_path, use_bias=False)
    with pytest.raises(CheckpointError, match="use_bias is false"):
        load_encoder(tmp_path)


def test_drawn_blocks_are_the_same_wherever_a_row_is_and_train() -> None:
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=12,
        stack=StackConfig(num_layers=2, num_heads=2, feed_forward_size=18),
        attention="blocks",
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        head="token",
        num_labels=2,
    )
    model = build_model(config)
    initialize_bert(model, 1, 0.3)
    rows = [row(90), row(20), row(50)]
    together = model.eval().encode(Tokens.from_rows(rows))
    alone = np.concatenate([model.encode(Tokens.from_rows([one])) for one in rows])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    ids, layout = model.to_tensors(Tokens.from_rows(rows))
    model.head_logits(model(ids, layout), layout).square().sum().backward()
    for name, parameter in model.named_parameters():
        if name != "types.weight" and not name.startswith("places"):
            assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()), name
