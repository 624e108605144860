"""Probability that a text follows another: that of transformers, for files and single pairs, where there is a head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import run
from regard.errors import UsageError
from regard.pipeline.loaders import load_next_sentence
from tests.encoders import save_random_hf_bert, saved_encoder

transformers = pytest.importorskip("transformers")

TEXTS = ["Paris is the capital of France.", "The cats, sleeping; the dogs barked at cats"] * 9
PAIRS = [(TEXTS[0], TEXTS[1]), ("cats", "The dogs barked."), ("France", " ".join(["Paris"] * 40)), ("dogs", "dogs")]


@pytest.fixture(scope="module", params=["BertForPreTraining", "BertForNextSentencePrediction"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_hf_bert(tmp_path_factory.mktemp("bert"), request.param, TEXTS)


def test_probabilities_are_those_of_transformers(folder: Path) -> None:
    pipeline = load_next_sentence(folder, threads=1)
    predictions = pipeline.predict(*zip(*PAIRS, strict=True))
    hf_model: Any = transformers.BertForNextSentencePrediction.from_pretrained(folder).eval()
    for (first, second), prediction in zip(PAIRS, predictions, strict=True):
        tokens, _ = pipeline.special_tokens.encode_batch([first], [second], max_length=24)
        assert tokens.token_types is not None
        with torch.no_grad():
            logits = hf_model(
                input_ids=torch.from_numpy(tokens.ids).long()[None],
                token_type_ids=torch.from_numpy(tokens.token_types).long()[None],
            ).logits[0]
        assert prediction.probability == pytest.approx(float(logits.softmax(-1)[0]), abs=1e-5)
        assert pipeline(first, second).probability == pytest.approx(prediction.probability, abs=1e-5)
    assert len({round(prediction.probability, 3) for prediction in predictions}) > 1
    assert pipeline.truncation_report.truncated_texts == 2  # once in the batch, once alone


def test_the_command_line_scores_a_pair_and_files(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [f"{load_next_sentence(folder, threads=1)(*pair).probability:.4f}" for pair in PAIRS]
    assert run(["score", str(folder), "--next-sentence", *PAIRS[0]]) == 0
    assert capsys.readouterr().out.split() == expected[:1]
    table = tmp_path / "pairs.tsv"
    table.write_text("".join(f"{first}\t{second}\n" for first, second in PAIRS), "utf-8")
    files = [tmp_path / name for name in ("first.txt", "second.txt")]
    for file, texts in zip(files, zip(*PAIRS, strict=True), strict=True):
        file.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    for arguments in ([str(table)], [str(file) for file in files]):
        assert run(["score", str(folder), *arguments]) == 0
        output = capsys.readouterr()
        assert output.out.split() == expected
        assert "4 pairs; predicted to follow: " in output.err
        assert "1 of 4 texts truncated" in output.err
    assert run(["score", str(folder), str(table), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["first"], line["second"]) for line in lines] == PAIRS
    assert [f"{line['probability']:.4f}" for line in lines] == expected


def test_what_cannot_be_scored_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = saved_encoder(tmp_path / "plain", TEXTS)
    for arguments, message in [
        (["score", str(plain), "--next-sentence", "a", "b"], "a plain head: whether a text follows another"),
        (["score", str(folder), "--next-sentence", "a", " "], "pair 1 has an empty text"),
        (["score", str(folder)], "score needs pairs of texts"),
        (["score", str(folder), "x.tsv", "--next-sentence", "a", "b"], "score needs pairs of texts"),
        (["score", str(folder), "--next-sentence", "a", "b", "--split"], "--split does not apply to"),
    ]:
        assert run(arguments) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UsageError, match="--next-sentence` trains one"):
        load_next_sentence(plain)
