"""Gaps of texts: the same words as the library's, whatever stands around and beside them."""

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
SOME = [
    "Paris is the [MASK] of France.",
    "[MASK]",
    "The [MASK] bark[MASK] at the [MASK]!",
    "Is [MASK] sleeping, Paris?",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model as the library writes it; large weights, so that a mistake shows."""
    place = tmp_path_factory.mktemp("bert")
    tokenizer = train_wordpiece(TEXTS, TokenizerConfig(lowercase=True, vocab_size=90))
    config = transformers.BertConfig(
        vocab_size=96, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=24, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(1)
    transformers.BertForMaskedLM(config).save_pretrained(place)
    (place / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> FillMaskPipeline:
    return load_filler(folder, threads=1)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers.BertForMaskedLM.from_pretrained(folder).eval()


def test_words_and_chances_are_those_of_the_library(model: FillMaskPipeline, theirs: Any) -> None:
    for text, filled in zip(SOME, model.fill(SOME, top_k=7), strict=True):
        ids = torch.tensor([model.framing.encode(text, parse_special=True).ids])
        with torch.no_grad():
            chances = theirs(ids).logits[0].softmax(-1)
        places = (ids[0] == model.framing.mask).nonzero()[:, 0]
        assert len(filled.masks) == len(places) == text.count("[MASK]")
        for gap, place in zip(filled.masks, places, strict=True):
            wanted, numbers = chances[place].topk(7)
            assert [one.token_id for one in gap] == numbers.tolist()
            assert [one.probability for one in gap] == pytest.approx(wanted.tolist(), rel=1e-4)


def test_a_text_has_the_same_words_alone_and_among_others(model: FillMaskPipeline) -> None:
    together = model.fill(SOME)
    for text, filled in zip(SOME, together, strict=True):
        alone = model(text)
        assert alone.best_text == filled.best_text
        for one, other in zip(alone.masks, filled.masks, strict=True):
            assert [word.probability for word in one] == pytest.approx([word.probability for word in other], rel=1e-4)


def test_a_word_stands_in_its_own_gap_and_a_piece_at_the_end_of_a_word(model: FillMaskPipeline) -> None:
    filled = model("The [MASK] is [MASK].", top_k=90)
    words = {one.token: one for one in filled.masks[1]}
    assert words["paris"].text == "The [MASK] is paris."
    pieces = [one for one in filled.masks[1] if model.tokenizer.subwords([one.token_id])[0].startswith("##")]
    assert pieces and all(one.text == f"The [MASK] is{one.token}." for one in pieces)
    first, second = (gap[0] for gap in filled.masks)
    assert filled.best_text == second.text.replace("[MASK]", first.token) or "##" in "".join(
        model.tokenizer.subwords([first.token_id, second.token_id])
    )


def test_a_long_text_is_read_around_its_gap(model: FillMaskPipeline) -> None:
    filled = model(f"{'cats ' * 40}the [MASK] of{' dogs' * 40}")
    assert filled.truncated == 83 - 22
    near = model(f"{'cats ' * 10}the [MASK] of{' dogs' * 9}")
    assert near.truncated == 0
    assert [one.token_id for one in near.masks[0]] == [one.token_id for one in filled.masks[0]]
    assert model(f"[MASK]{' dogs' * 40}").truncated == model(f"{'dogs ' * 40}[MASK]").truncated == 41 - 22
    with pytest.raises(UsageError, match="span 42 tokens, the model reads 22"):
        model(f"[MASK]{' dogs' * 40} [MASK]")


def test_perplexity_of_a_text_by_a_model_from_elsewhere(model: FillMaskPipeline) -> None:
    scores = model.scores(Documents.of(TEXTS))
    assert scores["hidden"] > 20 and scores["perplexity"] > 5
    assert "perplexity_unigram" not in scores  # nobody counted its training text


def test_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gaps.txt").write_text("\n".join(SOME), "utf-8")
    assert (
        run(["fill", str(folder), "--in", str(tmp_path / "gaps.txt"), "--json", "--best", "2", "--threads", "1"]) == 0
    )
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["text"] for one in found] == SOME and len(found[2]["gaps"]) == 3 and len(found[0]["gaps"][0]) == 2
    assert run(["fill", str(folder), SOME[0], "--best", "3"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 3 and all(f"Paris is the {word} of" in text or word in text for word, _, text in lines)
    (tmp_path / "plain.txt").write_text("\n".join(TEXTS), "utf-8")
    assert run(["evaluate", str(folder), str(tmp_path / "plain.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] > 1


@pytest.mark.parametrize("text", ["no gap at all", "a <mask> of another kind", ""])
def test_a_text_without_a_gap_names_the_mask_token(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fill", str(folder), "all is [MASK]", text]) == 2
    said = capsys.readouterr().err
    assert "text 2 has no mask" in said and "write [MASK]" in said


def test_models_that_cannot_fill(folder: Path, tmp_path: Path) -> None:
    theirs = transformers.BertModel.from_pretrained(folder)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text("utf-8"), "utf-8")
    with pytest.raises(CheckpointError, match=r"plain head.*regard train language FILES --from"):
        load_filler(tmp_path)
    assert isinstance(load(folder), FillMaskPipeline)


def test_counts_that_are_no_counts(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    for content in ("[1, 2]", "{", '"a"', "[1e999]"):
        (tmp_path / "counts.json").write_text(content, "utf-8")
        with pytest.raises(CheckpointError, match=r"counts\.json"):
            load_filler(tmp_path)
