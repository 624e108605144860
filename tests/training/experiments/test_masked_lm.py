"""Training masked-word models: they learn, go on exactly where they stopped, and their folders are anyone's."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.checkpoint.encoder_dir import load_encoder
from regard.checkpoint.run_defaults import apply_defaults
from regard.config.models import BertConfig, StackConfig
from regard.config.runs import RunConfig
from regard.data.documents import read_documents
from regard.errors import CheckpointError, ConfigError, DataError, UsageError
from regard.models.bert import Bert, initialize_bert, rescale_embeddings
from regard.pipeline.loaders import load_filler
from regard.tasks.masked_lm import MaskedLMObjective
from regard.tokens import Tokens
from regard.training.run import train_run
from tests.training.listener import Listener, sittings

SMALL = {
    "architecture": "bert",
    "preset": "custom",
    "bert.hidden_size": 16,
    "bert.stack.num_layers": 1,
    "bert.stack.num_heads": 2,
    "bert.stack.feed_forward_size": 32,
    "bert.max_positions": 40,
    "documents.sequence_length": 16,
    "training.batch_tokens": 96,
    "training.threads": 1,
    "training.precision": "float32",
}


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Texts in which a word stands among its like."""
    chance, words = random.Random(1), "one two three four five six seven eight nine ten eleven twelve".split()
    path = tmp_path / "book.txt"
    path.write_text("\n".join(" ".join([chance.choice(words)] * chance.randint(20, 60)) for _ in range(150)), "utf-8")
    return path


def config(book: Path, **changes: object) -> RunConfig:
    given = {**SMALL, "data.train": (str(book),), **changes}
    if "pretrained" in given:
        given = {name: value for name, value in given.items() if not name.startswith(("bert.", "preset"))}
    return RunConfig().override(apply_defaults("language", given))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_encoder(folder).weights


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_it_learns_what_stands_around_a_word(book: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings = {"training.steps": 100, "training.evaluate_every": 50, "training.batch_tokens": 192}
    report = train_run(config(book, **settings), tmp_path / "run", listeners=[listener])
    assert 3 * report.metrics["valid_perplexity"] < report.metrics["valid_perplexity_unigram"]
    lines = listener.of("plan")[0]["lines"]
    assert any("tokens in rows of 16" in line and "25 % of the tokens are masked" in line for line in lines)
    assert any("documents are held out" in line for line in lines)
    given, wanted, said = listener.of("evaluate")[-1]["samples"][0]
    assert "[MASK]" in given and said.startswith(f"{wanted} ") and said.count("%") == 3
    model = load_filler(tmp_path / "run")
    filled = model("six six [MASK] six six six six six")
    assert filled.masks[0][0].token == "six" and filled.best_text == "six six six six six six six six"
    assert model.scores(read_documents([book]))["times_better"] > 2.5
    assert weights(tmp_path / "run")["words.weight"].square().mean().sqrt().item() == pytest.approx(0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_tables_of_the_usual_size_change_nothing(tied: bool) -> None:
    """Fine-tuning moves words by steps of a fixed size: large ones would hardly move."""
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=32)
    config = BertConfig(vocab_size=30, hidden_size=16, stack=stack, head="masked", tie_embeddings=tied)
    model, rows = Bert(config).eval(), Tokens.from_rows([[3, 9, 4, 20], [7, 7]])
    initialize_bert(model, 1, std=0.4)
    states, scores = model.encode(rows), model.logits(rows)
    made = rescale_embeddings(model.state_dict(), config)
    assert made["words.weight"].square().mean().sqrt().item() == pytest.approx(0.02)
    model.load_state_dict(made)
    np.testing.assert_allclose(model.encode(rows), states, atol=2e-6)
    np.testing.assert_allclose(model.logits(rows), scores, atol=1e-5 * np.abs(scores).max())
    small = {name: tensor / 100 for name, tensor in made.items()}
    assert all(torch.equal(one, small[name]) for name, one in rescale_embeddings(small, config).items())


def test_it_soon_finds_that_neighbours_tell_a_word(tmp_path: Path) -> None:
    words, path = [f"{one}{two}" for one in "bdfgk" for two in ("a", "e", "i", "o")], tmp_path / "round.txt"
    lines = (" ".join(words[(start + place) % 20] for place in range(30)) for start in range(150))
    path.write_text("\n".join(lines), "utf-8")
    settings = {"bert.hidden_size": 32, "bert.stack.num_layers": 2, "training.steps": 60, "training.batch_tokens": 256}
    report = train_run(config(path, **settings), tmp_path / "run")
    assert 2 * report.metrics["valid_perplexity"] < report.metrics["valid_perplexity_unigram"]


@pytest.mark.parametrize(
    "settings",
    [
        {"training.precision": "bf16"},
        {"masking.next_sentence": True, "training.accumulation_steps": 3, "training.accumulation_ramp": 0.5},
    ],
)
def test_interrupted_at_any_step_it_ends_in_the_same_bits(
    book: Path, tmp_path: Path, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = {
        "training.steps": 14,
        "training.save_every": 3,
        "training.evaluate_every": 5,
        "training.average_checkpoints": 2,
    }
    given = {**every, "masking.pretraining_dropout": 0.1, "masking.whole_word_masking": True, **settings}
    train_run(config(book, **given), tmp_path / "alone")
    begun = sittings(MaskedLMObjective, lambda: train_run(config(book, **given), tmp_path / "killed"), monkeypatch)
    assert begun > 1
    assert same(tmp_path / "alone", tmp_path / "killed")
    assert (tmp_path / "alone/log.jsonl").read_bytes() == (tmp_path / "killed/log.jsonl").read_bytes()


def test_others_open_what_it_writes(book: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "run"
    train_run(config(book, **{"training.steps": 3, "masking.next_sentence": True}), folder)
    for kind in (transformers.BertForMaskedLM, transformers.BertForPreTraining):
        model, found = kind.from_pretrained(folder, output_loading_info=True)
        assert not found["missing_keys"] and not found["mismatched_keys"]
        assert model.config.hidden_dropout_prob == 0.1  # off while it learned, on for those who fine-tune it
    assert not found["unexpected_keys"]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    text = "one [MASK] three"
    ids = theirs(text)["input_ids"]
    assert ids == load_filler(folder).framing.encode(text, parse_special=True).ids
    assert json.loads((folder / "task.json").read_text())["task"] == "fill"


def test_it_goes_on_from_another_model(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 4}), tmp_path / "first")
    gently = {"training.steps": 1, "training.learning_rate": 1e-9, "pretrained": str(tmp_path / "first")}
    without = {
        name: value
        for name, value in {**SMALL, **gently}.items()
        if not name.startswith(("bert.", "preset", "architecture"))
    }
    run = RunConfig().override(apply_defaults("language", {**without, "data.train": (str(book),)}))
    assert run.architecture == "bert"  # the folder says so
    listener = Listener()
    train_run(run, tmp_path / "second", listeners=[listener])
    torch.testing.assert_close(weights(tmp_path / "first"), weights(tmp_path / "second"), rtol=1e-3, atol=1e-5)
    assert (tmp_path / "first/tokenizer.json").read_bytes() == (tmp_path / "second/tokenizer.json").read_bytes()
    assert any("(as in " in line for line in listener.of("plan")[0]["lines"])


def test_new_words_start_from_the_old_ones(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 4}), tmp_path / "first")
    other = tmp_path / "other.txt"
    other.write_text("\n".join(["one two sixteen", "three fourteen two"] * 30), "utf-8")
    changes = {"training.steps": 1, "training.learning_rate": 1e-9, "pretrained": str(tmp_path / "first")}
    train_run(config(other, **changes, **{"masking.words": "new"}), tmp_path / "second")
    old, new = load_encoder(tmp_path / "first"), load_encoder(tmp_path / "second")
    numbers = [int(one.tokenizer.backend.token_to_id("two")) for one in (old, new)]
    assert new.config.vocab_size == new.tokenizer.vocab_size != old.config.vocab_size
    assert new.tokenizer.encode("sixteen").subwords == ["sixteen"] != old.tokenizer.encode("sixteen").subwords
    rows = [one.weights["words.weight"][number] for one, number in zip((old, new), numbers, strict=True)]
    torch.testing.assert_close(*rows, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preset": "big"}, "preset must be one of tiny, mini, small"),
        ({"documents.sequence_length": 3}, r"documents\.sequence_length \(3\) must be between 4 and 40"),
        ({"documents.sequence_length": 41}, "between 4 and 40, the positions of the model"),
        ({"pretrained": "nothing"}, "nothing"),
        ({"elmo.num_layers": 3}, r"elmo\.num_layers \(3\) means nothing to --arch bert: it is for --arch elmo"),
        (
            {"architecture": "elmo", "masking.mask_rate": 0.3},
            r"masking\.mask_rate \(0\.3\) means nothing to --arch elmo",
        ),
    ],
)
def test_what_it_refuses(book: Path, tmp_path: Path, changes: dict[str, object], words: str) -> None:
    if "pretrained" in changes:
        changes = {"pretrained": str(tmp_path / "nothing")}
    given = {**SMALL, "data.train": (str(book),), **changes}
    if given["preset"] != "custom" or given["architecture"] != "bert" or "pretrained" in given:
        given = {name: value for name, value in given.items() if not name.startswith("bert.")}
    with pytest.raises((ConfigError, UsageError, CheckpointError), match=words):
        train_run(RunConfig().override(apply_defaults("language", given)), tmp_path / "run")


def test_text_in_letters_that_a_model_does_not_know(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 1}), tmp_path / "first")
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("\n".join(["один два", "три"] * 30), "utf-8")
    with pytest.raises(DataError, match="no word in it is known"):
        train_run(config(foreign, pretrained=str(tmp_path / "first")), tmp_path / "second")
