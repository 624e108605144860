"""Predictions for masked tokens: those of transformers, independent of the batch, around the masks of long texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import run
from regard.data.documents import Documents
from regard.errors import CheckpointError, UsageError
from regard.pipeline.fill_mask import FillMaskPipeline, Prediction
from regard.pipeline.load import load
from regard.pipeline.loaders import load_filler
from tests.encoders import save_random_hf_bert

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
    return save_random_hf_bert(tmp_path_factory.mktemp("bert"), "BertForMaskedLM", TEXTS)


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> FillMaskPipeline:
    return load_filler(folder, threads=1)


@pytest.fixture(scope="module")
def hf_model(folder: Path) -> Any:
    return transformers.BertForMaskedLM.from_pretrained(folder).eval()


def list_probabilities(predictions: list[Prediction]) -> list[float]:
    return [prediction.probability for prediction in predictions]


def list_ids(predictions: list[Prediction]) -> list[int]:
    return [prediction.token_id for prediction in predictions]


def test_tokens_and_probabilities_are_those_of_transformers(pipeline: FillMaskPipeline, hf_model: Any) -> None:
    for text, filled in zip(MASKED, pipeline.fill(MASKED, top_k=7), strict=True):
        ids = torch.tensor([pipeline.special_tokens.encode(text, parse_special=True).ids])
        with torch.no_grad():
            probabilities = hf_model(ids).logits[0].softmax(-1)
        positions = (ids[0] == pipeline.special_tokens.mask_id).nonzero()[:, 0]
        assert len(filled.masks) == len(positions) == text.count("[MASK]")
        for predictions, position in zip(filled.masks, positions, strict=True):
            expected, expected_ids = probabilities[position].topk(7)
            assert list_ids(predictions) == expected_ids.tolist()
            assert list_probabilities(predictions) == pytest.approx(expected.tolist(), rel=1e-4)


def test_predictions_do_not_depend_on_the_batch(pipeline: FillMaskPipeline) -> None:
    for text, filled in zip(MASKED, pipeline.fill(MASKED), strict=True):
        alone = pipeline(text)
        assert alone.best_text == filled.best_text
        for alone_predictions, predictions in zip(alone.masks, filled.masks, strict=True):
            expected = list_probabilities(predictions)
            assert list_probabilities(alone_predictions) == pytest.approx(expected, rel=1e-4)


def test_a_word_replaces_its_own_mask_and_a_subword_joins_the_word_before(pipeline: FillMaskPipeline) -> None:
    def spaced(prediction: Prediction) -> str:
        (subword,) = pipeline.tokenizer.subwords([prediction.token_id])
        return prediction.token if subword.startswith("##") else f" {prediction.token}"

    filled = pipeline("The [MASK] is [MASK].", top_k=90)
    first_mask, second_mask = filled.masks
    by_token = {prediction.token: prediction for prediction in second_mask}
    assert by_token["paris"].text == "The [MASK] is paris."
    assert any(not spaced(prediction).startswith(" ") for prediction in second_mask), "no subword is predicted"
    for prediction in second_mask:
        assert prediction.text == f"The [MASK] is{spaced(prediction)}."
    assert filled.best_text == f"The{spaced(first_mask[0])} is{spaced(second_mask[0])}."


def test_a_long_text_is_read_around_its_mask(pipeline: FillMaskPipeline) -> None:
    filled = pipeline(f"{'cats ' * 40}the [MASK] of{' dogs' * 40}")
    assert filled.truncated == 83 - 22
    short = pipeline(f"{'cats ' * 10}the [MASK] of{' dogs' * 9}")
    assert short.truncated == 0
    assert list_ids(short.masks[0]) == list_ids(filled.masks[0])
    assert pipeline(f"[MASK]{' dogs' * 40}").truncated == 41 - 22
    assert pipeline(f"{'dogs ' * 40}[MASK]").truncated == 41 - 22
    with pytest.raises(UsageError, match="span 42 tokens, the model reads 22"):
        pipeline(f"[MASK]{' dogs' * 40} [MASK]")


def test_a_model_of_transformers_is_evaluated_without_a_unigram_baseline(pipeline: FillMaskPipeline) -> None:
    scores = pipeline.evaluate(Documents.from_texts(TEXTS))
    assert scores["masked"] > 20
    assert scores["perplexity"] > 5
    assert "perplexity_unigram" not in scores  # it has no token counts of its training text


def test_the_command_line_prints_the_predictions_of_the_pipeline(
    folder: Path, pipeline: FillMaskPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "masked.txt"
    texts.write_text("\n".join(MASKED), "utf-8")
    assert run(["fill", str(folder), "--in", str(texts), "--json", "--top-k", "2", "--threads", "1"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["text"] for result in results] == MASKED
    assert len(results[2]["masks"]) == 3
    assert len(results[0]["masks"][0]) == 2
    assert run(["fill", str(folder), MASKED[0], "--top-k", "3", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (predictions,) = pipeline(MASKED[0], top_k=3).masks
    assert lines == [
        f"{prediction.token}\t{prediction.probability:.4f}\t{prediction.text}" for prediction in predictions
    ]


def test_the_command_line_prints_the_scores_of_the_pipeline(
    folder: Path, pipeline: FillMaskPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "plain.txt"
    texts.write_text("\n".join(TEXTS), "utf-8")
    assert run(["evaluate", str(folder), str(texts), "--json", "--threads", "1"]) == 0
    scores = json.loads(capsys.readouterr().out)
    expected = pipeline.evaluate(Documents.from_texts(TEXTS))
    assert scores == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("text", ["no mask at all", "a <mask> of another kind", ""])
def test_the_error_of_a_text_without_a_mask_names_the_mask_token(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fill", str(folder), "all is [MASK]", text]) == 2
    message = capsys.readouterr().err
    assert "text 2 has no mask" in message
    assert "write [MASK]" in message


def test_models_without_a_masked_lm_head_are_rejected(folder: Path, tmp_path: Path) -> None:
    hf_model = transformers.BertModel.from_pretrained(folder)
    hf_model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text("utf-8"), "utf-8")
    with pytest.raises(CheckpointError, match=r"plain head.*regard train masked-lm FILES --from"):
        load_filler(tmp_path)
    assert isinstance(load(folder), FillMaskPipeline)


def test_damaged_token_counts_are_rejected(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    for content in ("[1, 2]", "{", '"a"', "[1e999]"):
        (tmp_path / "counts.json").write_text(content, "utf-8")
        with pytest.raises(CheckpointError, match=r"counts\.json"):
            load_filler(tmp_path)
