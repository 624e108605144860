"""Masked tokens: the predictions of transformers, independent of context length and batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import run
from regard.config.data import TokenizerConfig
from regard.data.documents import Documents
from regard.errors import CheckpointError, UsageError
from regard.pipeline.fill_mask import FillMaskPipeline
from regard.pipeline.load import load
from regard.pipeline.loaders import load_filler
from regard.text.train import train_wordpiece

transformers = pytest.importorskip("transformers")
TEXTS = ["Paris is the capital of France.", "The cats, sleeping; the dogs barked at cats"] * 9
MASKED = [
    "Paris is the [MASK] of France.",
    "[MASK]",
    "The [MASK] bark[MASK] at the [MASK]!",
    "Is [MASK] sleeping, Paris?",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model as transformers saves it; large weights, so that a mistake shows."""
    path = tmp_path_factory.mktemp("bert")
    tokenizer = train_wordpiece(TEXTS, TokenizerConfig(lowercase=True, vocab_size=90))
    config = transformers.BertConfig(
        vocab_size=96, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=24, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(1)
    transformers.BertForMaskedLM(config).save_pretrained(path)
    (path / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> FillMaskPipeline:
    return load_filler(folder, threads=1)


@pytest.fixture(scope="module")
def hf_model(folder: Path) -> Any:
    return transformers.BertForMaskedLM.from_pretrained(folder).eval()


def test_tokens_and_probabilities_are_those_of_transformers(model: FillMaskPipeline, hf_model: Any) -> None:
    for text, filled in zip(MASKED, model.fill(MASKED, top_k=7), strict=True):
        ids = torch.tensor([model.special_tokens.encode(text, parse_special=True).ids])
        with torch.no_grad():
            probabilities = hf_model(ids).logits[0].softmax(-1)
        positions = (ids[0] == model.special_tokens.mask_id).nonzero()[:, 0]
        assert len(filled.masks) == len(positions) == text.count("[MASK]")
        for predictions, position in zip(filled.masks, positions, strict=True):
            expected, expected_ids = probabilities[position].topk(7)
            assert [prediction.token_id for prediction in predictions] == expected_ids.tolist()
            assert [prediction.probability for prediction in predictions] == pytest.approx(expected.tolist(), rel=1e-4)


def test_predictions_do_not_depend_on_the_batch(model: FillMaskPipeline) -> None:
    filled_texts = model.fill(MASKED)
    for text, filled in zip(MASKED, filled_texts, strict=True):
        alone = model(text)
        assert alone.best_text == filled.best_text
        for predictions, batch_predictions in zip(alone.masks, filled.masks, strict=True):
            assert [prediction.probability for prediction in predictions] == pytest.approx(
                [prediction.probability for prediction in batch_predictions], rel=1e-4
            )


def test_a_word_replaces_its_own_mask_and_a_subword_joins_the_word_before(model: FillMaskPipeline) -> None:
    filled = model("The [MASK] is [MASK].", top_k=90)
    by_token = {prediction.token: prediction for prediction in filled.masks[1]}
    assert by_token["paris"].text == "The [MASK] is paris."
    subwords = [
        prediction
        for prediction in filled.masks[1]
        if model.tokenizer.subwords([prediction.token_id])[0].startswith("##")
    ]
    assert subwords and all(prediction.text == f"The [MASK] is{prediction.token}." for prediction in subwords)
    first, second = (predictions[0] for predictions in filled.masks)
    assert filled.best_text == second.text.replace("[MASK]", first.token) or "##" in "".join(
        model.tokenizer.subwords([first.token_id, second.token_id])
    )


def test_a_long_text_is_read_around_its_mask(model: FillMaskPipeline) -> None:
    filled = model(f"{'cats ' * 40}the [MASK] of{' dogs' * 40}")
    assert filled.truncated == 83 - 22
    short = model(f"{'cats ' * 10}the [MASK] of{' dogs' * 9}")
    assert short.truncated == 0
    assert [prediction.token_id for prediction in short.masks[0]] == [
        prediction.token_id for prediction in filled.masks[0]
    ]
    assert model(f"[MASK]{' dogs' * 40}").truncated == model(f"{'dogs ' * 40}[MASK]").truncated == 41 - 22
    with pytest.raises(UsageError, match="span 42 tokens, the model reads 22"):
        model(f"[MASK]{' dogs' * 40} [MASK]")


def test_perplexity_of_a_text_by_a_model_of_transformers(model: FillMaskPipeline) -> None:
    scores = model.evaluate(Documents.from_texts(TEXTS))
    assert scores["hidden"] > 20 and scores["perplexity"] > 5
    assert "perplexity_unigram" not in scores  # it has no counts of its training text


def test_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gaps.txt").write_text("\n".join(MASKED), "utf-8")
    assert (
        run(["fill", str(folder), "--in", str(tmp_path / "gaps.txt"), "--json", "--best", "2", "--threads", "1"]) == 0
    )
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (
        [result["text"] for result in results] == MASKED
        and len(results[2]["gaps"]) == 3
        and len(results[0]["gaps"][0]) == 2
    )
    assert run(["fill", str(folder), MASKED[0], "--best", "3"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 3 and all(f"Paris is the {word} of" in text or word in text for word, _, text in lines)
    (tmp_path / "plain.txt").write_text("\n".join(TEXTS), "utf-8")
    assert run(["evaluate", str(folder), str(tmp_path / "plain.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] > 1


@pytest.mark.parametrize("text", ["no mask at all", "a <mask> of another kind", ""])
def test_the_error_of_a_text_without_a_mask_names_the_mask_token(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fill", str(folder), "all is [MASK]", text]) == 2
    message = capsys.readouterr().err
    assert "text 2 has no mask" in message and "write [MASK]" in message


def test_models_without_a_masked_lm_head_are_rejected(folder: Path, tmp_path: Path) -> None:
    hf_model = transformers.BertModel.from_pretrained(folder)
    hf_model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text("utf-8"), "utf-8")
    with pytest.raises(CheckpointError, match=r"plain head.*regard train language FILES --from"):
        load_filler(tmp_path)
    assert isinstance(load(folder), FillMaskPipeline)


def test_damaged_token_counts_are_rejected(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    for content in ("[1, 2]", "{", '"a"', "[1e999]"):
        (tmp_path / "counts.json").write_text(content, "utf-8")
        with pytest.raises(CheckpointError, match=r"counts\.json"):
            load_filler(tmp_path)
