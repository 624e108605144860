"""BigBird folders: outputs equal those of transformers below, at and above the length where attention is sparse."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.checkpoint.hf.encoders import LabelNames, config_from_hf, config_to_hf
from regard.config.models import BertConfig, StackConfig
from regard.errors import CheckpointError
from regard.models import build_model
from regard.models.bert import initialize_bert
from regard.packed_tokens import Tokens

transformers = pytest.importorskip("transformers")

BLOCK_SIZE = 4
NUM_RANDOM_BLOCKS = 2
MAX_FULL_LENGTH = (5 + 2 * NUM_RANDOM_BLOCKS) * BLOCK_SIZE  # up to this length attention is full
SUBWORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(40))]
SEP_ID = SUBWORDS.index("[SEP]")
SIZES = {
    "vocab_size": len(SUBWORDS),
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 18,
    "max_position_embeddings": 120,
    "block_size": BLOCK_SIZE,
    "num_random_blocks": NUM_RANDOM_BLOCKS,
    "sep_token_id": SEP_ID,
}
CLASSES = {
    "plain": "BigBirdModel",
    "masked": "BigBirdForMaskedLM",
    "pretraining": "BigBirdForPreTraining",
    "label": "BigBirdForSequenceClassification",
    "token": "BigBirdForTokenClassification",
    "span": "BigBirdForQuestionAnswering",
}


def save_big_bird(folder: Path, head: str = "plain", **changes: Any) -> Any:
    """Save a small random BigBird in a folder with a vocabulary; `changes` replace config fields."""
    config = transformers.BigBirdConfig(**{**SIZES, **changes})
    torch.manual_seed(4)
    model = getattr(transformers, CLASSES[head])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(SUBWORDS) + "\n")
    return model


def load_big_bird(folder: Path, head: str) -> Any:
    """Load a model in transformers anew: after a short sequence it would stay with full attention."""
    return getattr(transformers, CLASSES[head]).from_pretrained(folder).eval()


def random_sequence(length: int) -> list[int]:
    """Token ids of two texts with a separator between them."""
    ids: list[int] = np.random.default_rng(length).integers(5, len(SUBWORDS), length).tolist()
    ids[length // 3] = SEP_ID
    return ids


def assert_close(array: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(array - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("changes", [{}, {"rescale_embeddings": True, "hidden_act": "relu"}], ids=["default", "other"])
@torch.no_grad()
def test_hidden_states_equal_those_of_transformers_at_any_length(tmp_path: Path, changes: dict[str, Any]) -> None:
    save_big_bird(tmp_path, **changes)
    model = load_encoder(tmp_path).model().eval()
    lengths = [7, MAX_FULL_LENGTH, MAX_FULL_LENGTH + 1, MAX_FULL_LENGTH + BLOCK_SIZE, 61, 120]
    sequences = [random_sequence(length) for length in lengths]
    tokens = Tokens.from_rows(sequences)
    starts = np.cumsum(lengths)[:-1]
    hidden = np.split(model.encode(tokens), starts)
    packed_hidden = np.split(model.pack().encode(tokens), starts)
    for index, ids in enumerate(sequences):
        hf_model = load_big_bird(tmp_path, "plain")
        expected = hf_model(torch.tensor([ids]))
        assert_close(hidden[index], expected.last_hidden_state[0].numpy())
        assert_close(packed_hidden[index], expected.last_hidden_state[0].numpy())
        assert_close(model.pooler_output(Tokens.from_rows([ids]))[0], expected.pooler_output[0].numpy())


@pytest.mark.parametrize("head", [head for head in CLASSES if head != "plain"])
@torch.no_grad()
def test_logits_equal_those_of_transformers_and_folders_open_there_with_nothing_missing(
    tmp_path: Path, head: str
) -> None:
    save_big_bird(tmp_path / "hf", head)
    loaded = load_encoder(tmp_path / "hf")
    assert loaded.config.head == head
    assert not loaded.report.missing
    model = loaded.model().eval()
    model_type = save_encoder(
        tmp_path / "ours",
        loaded.config,
        loaded.weights,
        tokenizer=loaded.tokenizer,
        task="",
        metadata={},
        card="",
        labels=loaded.labels,
        preferred_type=loaded.model_type,
        original_config=loaded.hf_config,
    )
    assert model_type == "big_bird"
    hf_class = getattr(transformers, CLASSES[head])
    _, loading_info = hf_class.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not loading_info["missing_keys"]
    assert not loading_info["unexpected_keys"]
    assert not loading_info["mismatched_keys"]
    for length, folder in itertools.product((20, 90), ("hf", "ours")):
        ids = random_sequence(length)
        token_types = (np.arange(length) > length // 3).astype(np.int32)
        hf_model = load_big_bird(tmp_path / folder, head)
        output = hf_model(torch.tensor([ids]), token_type_ids=torch.tensor(token_types[None].astype(np.int64)))
        logits = model.logits(Tokens.from_rows([ids]), token_types)
        if head == "span":
            passage = slice(length // 3 + 1, None)  # transformers masks the logits of the question
            assert_close(logits[passage, 0], output.start_logits[0, passage].numpy())
            assert_close(logits[passage, 1], output.end_logits[0, passage].numpy())
        else:
            expected = output.prediction_logits if head == "pretraining" else output.logits
            assert_close(logits, expected.numpy().reshape(logits.shape))


@torch.no_grad()
def test_full_attention_is_recognized(tmp_path: Path) -> None:
    hf_model = save_big_bird(tmp_path, attention_type="original_full")
    loaded = load_encoder(tmp_path)
    assert loaded.config.attention == "full"
    ids = random_sequence(90)
    expected = hf_model(torch.tensor([ids])).last_hidden_state[0].numpy()
    assert_close(loaded.model().encode(Tokens.from_rows([ids])), expected)


def test_a_changed_kind_of_attention_is_written(tmp_path: Path) -> None:
    save_big_bird(tmp_path)
    loaded = load_encoder(tmp_path)
    full = loaded.config.override({"attention": "full"})
    fields = config_to_hf(full, loaded.model_type, LabelNames(), loaded.hf_config)
    assert config_from_hf(fields, full.head, full.num_labels, "config.json") == full
    assert fields["attention_type"] == "original_full"


def test_models_without_biases_are_rejected(tmp_path: Path) -> None:
    save_big_bird(tmp_path, use_bias=False)
    with pytest.raises(CheckpointError, match="use_bias is false"):
        load_encoder(tmp_path)


def test_random_blocks_do_not_depend_on_the_batch_and_pass_gradients() -> None:
    config = BertConfig(
        vocab_size=len(SUBWORDS),
        hidden_size=12,
        stack=StackConfig(num_layers=2, num_heads=2, feed_forward_size=18),
        attention="blocks",
        block_size=BLOCK_SIZE,
        num_random_blocks=NUM_RANDOM_BLOCKS,
        head="token",
        num_labels=2,
    )
    model = build_model(config)
    initialize_bert(model, 1, 0.3)
    sequences = [random_sequence(90), random_sequence(20), random_sequence(50)]
    batched = model.eval().encode(Tokens.from_rows(sequences))
    alone = np.concatenate([model.encode(Tokens.from_rows([ids])) for ids in sequences])
    np.testing.assert_allclose(batched, alone, rtol=1e-4, atol=1e-5)
    ids, batch = model.to_tensors(Tokens.from_rows(sequences))
    model.head_logits(model(ids, batch), batch).square().sum().backward()
    for name, parameter in model.named_parameters():
        if name != "token_type_embedding.weight" and not name.startswith("position_embedding"):
            assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()), name
