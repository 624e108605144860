"""Training masked-word models: they learn, go on exactly where they stopped, and their folders are anyone's."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.checkpoint.encoder_folder import load_encoder
from regard.checkpoint.starting import with_usual
from regard.config.model import EncoderConfig, StackConfig
from regard.config.run import RunConfig
from regard.data.documents import read_documents
from regard.errors import CheckpointError, ConfigError, DataError, UsageError
from regard.models.encoder import Encoder, start_encoder, with_usual_tables
from regard.pipeline import load_filler
from regard.tasks.masking import MaskedTask
from regard.tokens import Tokens
from regard.training.run import train_run
from tests.training.listener import Listener, sittings

SMALL = {
    "arch": "bert",
    "preset": "custom",
    "bert.width": 16,
    "bert.stack.layers": 1,
    "bert.stack.heads": 2,
    "bert.stack.feedforward": 32,
    "bert.places": 40,
    "language.row": 16,
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
    if "start_from" in given:
        given = {name: value for name, value in given.items() if not name.startswith(("bert.", "preset"))}
    return RunConfig().override(with_usual("language", given))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_encoder(folder).weights


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_it_learns_what_stands_around_a_word(book: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings = {"training.steps": 100, "training.evaluate_every": 50, "training.batch_tokens": 192}
    report = train_run(config(book, **settings), tmp_path / "run", watchers=[listener])
    assert 3 * report.metrics["valid_perplexity"] < report.metrics["valid_perplexity_unigram"]
    lines = listener.of("plan")[0]["lines"]
    assert any("tokens in rows of 16" in line and "25 % of the tokens are hidden" in line for line in lines)
    assert any("documents are held out" in line for line in lines)
    given, wanted, said = listener.of("evaluate")[-1]["samples"][0]
    assert "[MASK]" in given and said.startswith(f"{wanted} ") and said.count("%") == 3
    model = load_filler(tmp_path / "run")
    filled = model("six six [MASK] six six six six six")
    assert filled.gaps[0][0].word == "six" and filled.best == "six six six six six six six six"
    assert model.scores(read_documents([book]))["times_better"] > 2.5
    assert weights(tmp_path / "run")["words.weight"].square().mean().sqrt().item() == pytest.approx(0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_tables_of_the_usual_size_change_nothing(tied: bool) -> None:
    """Fine-tuning moves words by steps of a fixed size: large ones would hardly move."""
    stack = StackConfig(layers=2, heads=2, feedforward=32)
    config = EncoderConfig(vocabulary=30, width=16, stack=stack, head="masked", tied=tied)
    model, rows = Encoder(config).eval(), Tokens.from_rows([[3, 9, 4, 20], [7, 7]])
    start_encoder(model, 1, deviation=0.4)
    states, scores = model.encode(rows), model.scores(rows)
    made = with_usual_tables(model.state_dict(), config)
    assert made["words.weight"].square().mean().sqrt().item() == pytest.approx(0.02)
    model.load_state_dict(made)
    np.testing.assert_allclose(model.encode(rows), states, atol=2e-6)
    np.testing.assert_allclose(model.scores(rows), scores, atol=1e-5 * np.abs(scores).max())
    small = {name: tensor / 100 for name, tensor in made.items()}
    assert all(torch.equal(one, small[name]) for name, one in with_usual_tables(small, config).items())


def test_it_soon_finds_that_neighbours_tell_a_word(tmp_path: Path) -> None:
    words, path = [f"{one}{two}" for one in "bdfgk" for two in ("a", "e", "i", "o")], tmp_path / "round.txt"
    lines = (" ".join(words[(start + place) % 20] for place in range(30)) for start in range(150))
    path.write_text("\n".join(lines), "utf-8")
    settings = {"bert.width": 32, "bert.stack.layers": 2, "training.steps": 60, "training.batch_tokens": 256}
    report = train_run(config(path, **settings), tmp_path / "run")
    assert 2 * report.metrics["valid_perplexity"] < report.metrics["valid_perplexity_unigram"]


@pytest.mark.parametrize(
    "settings",
    [{"training.precision": "bf16"}, {"masking.next_sentence": True, "training.accumulate": 3, "training.ramp": 0.5}],
)
def test_interrupted_at_any_step_it_ends_in_the_same_bits(
    book: Path, tmp_path: Path, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = {"training.steps": 14, "training.save_every": 3, "training.evaluate_every": 5, "training.average": 2}
    given = {**every, "masking.dropout": 0.1, "masking.whole_words": True, **settings}
    train_run(config(book, **given), tmp_path / "alone")
    begun = sittings(MaskedTask, lambda: train_run(config(book, **given), tmp_path / "killed"), monkeypatch)
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
    assert ids == load_filler(folder).framing.read(text, marks=True).ids
    assert json.loads((folder / "task.json").read_text())["task"] == "fill"


def test_it_goes_on_from_another_model(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 4}), tmp_path / "first")
    gently = {"training.steps": 1, "training.learning_rate": 1e-9, "start_from": str(tmp_path / "first")}
    without = {
        name: value for name, value in {**SMALL, **gently}.items() if not name.startswith(("bert.", "preset", "arch"))
    }
    run = RunConfig().override(with_usual("language", {**without, "data.train": (str(book),)}))
    assert run.arch == "bert"  # the folder says so
    listener = Listener()
    train_run(run, tmp_path / "second", watchers=[listener])
    torch.testing.assert_close(weights(tmp_path / "first"), weights(tmp_path / "second"), rtol=1e-3, atol=1e-5)
    assert (tmp_path / "first/tokenizer.json").read_bytes() == (tmp_path / "second/tokenizer.json").read_bytes()
    assert any("(as in " in line for line in listener.of("plan")[0]["lines"])


def test_new_words_start_from_the_old_ones(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 4}), tmp_path / "first")
    other = tmp_path / "other.txt"
    other.write_text("\n".join(["one two sixteen", "three fourteen two"] * 30), "utf-8")
    changes = {"training.steps": 1, "training.learning_rate": 1e-9, "start_from": str(tmp_path / "first")}
    train_run(config(other, **changes, **{"masking.words": "new"}), tmp_path / "second")
    old, new = load_encoder(tmp_path / "first"), load_encoder(tmp_path / "second")
    numbers = [int(one.tokenizer.backend.token_to_id("two")) for one in (old, new)]
    assert new.config.vocabulary == new.tokenizer.size != old.config.vocabulary
    assert new.tokenizer.encode("sixteen").pieces == ["sixteen"] != old.tokenizer.encode("sixteen").pieces
    rows = [one.weights["words.weight"][number] for one, number in zip((old, new), numbers, strict=True)]
    torch.testing.assert_close(*rows, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preset": "big"}, "preset must be one of tiny, mini, small"),
        ({"language.row": 3}, r"language\.row \(3\) must be between 4 and 40"),
        ({"language.row": 41}, "between 4 and 40, all it reads"),
        ({"start_from": "nothing"}, "nothing"),
        ({"elmo.layers": 3}, r"elmo\.layers \(3\) means nothing to --arch bert: it is for --arch elmo"),
        ({"arch": "elmo", "masking.rate": 0.3}, r"masking\.rate \(0\.3\) means nothing to --arch elmo"),
    ],
)
def test_what_it_refuses(book: Path, tmp_path: Path, changes: dict[str, object], words: str) -> None:
    if "start_from" in changes:
        changes = {"start_from": str(tmp_path / "nothing")}
    given = {**SMALL, "data.train": (str(book),), **changes}
    if given["preset"] != "custom" or given["arch"] != "bert" or "start_from" in given:
        given = {name: value for name, value in given.items() if not name.startswith("bert.")}
    with pytest.raises((ConfigError, UsageError, CheckpointError), match=words):
        train_run(RunConfig().override(with_usual("language", given)), tmp_path / "run")


def test_text_in_letters_that_a_model_does_not_know(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 1}), tmp_path / "first")
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("\n".join(["один два", "три"] * 30), "utf-8")
    with pytest.raises(DataError, match="no word in it is known"):
        train_run(config(foreign, start_from=str(tmp_path / "first")), tmp_path / "second")
