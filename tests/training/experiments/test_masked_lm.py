"""Training masked language models: learning, resuming bit by bit, new vocabularies, folders for other libraries."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.checkpoint.encoder_dir import load_encoder
from regard.config.language_model_runs import MaskedLMRun
from regard.config.models import BertConfig, StackConfig
from regard.data.documents import read_documents
from regard.errors import CheckpointError, ConfigError, DataError, UsageError
from regard.models.bert import Bert, initialize_bert, rescale_embeddings
from regard.packed_tokens import Tokens
from regard.pipeline.loaders import load_filler
from regard.tasks.masked_lm import MaskedLMObjective
from regard.training.run import train_run
from tests.training.listener import Listener, sittings
from tests.training.logs import log_without_throughput

SMALL = {
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
    """Texts that repeat one word."""
    rng = random.Random(1)
    words = "one two three four five six seven eight nine ten eleven twelve".split()
    path = tmp_path / "book.txt"
    path.write_text("\n".join(" ".join([rng.choice(words)] * rng.randint(20, 60)) for _ in range(150)), "utf-8")
    return path


def config(book: Path, **changes: object) -> MaskedLMRun:
    settings = {**SMALL, "data.train": (str(book),), **changes}
    if "pretrained" in settings:
        settings = {name: value for name, value in settings.items() if not name.startswith(("bert.", "preset"))}
    return MaskedLMRun.build(settings)


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_encoder(folder).weights


def have_same_weights(first: Path, second: Path) -> bool:
    first_weights = load_weights(first)
    second_weights = load_weights(second)
    return first_weights.keys() == second_weights.keys() and all(
        torch.equal(weight, second_weights[name]) for name, weight in first_weights.items()
    )


def test_it_learns_to_use_the_context_of_a_masked_token(book: Path, tmp_path: Path) -> None:
    listener = Listener()
    settings = {"training.steps": 100, "training.evaluate_every": 50, "training.batch_tokens": 192}
    report = train_run(config(book, **settings), tmp_path / "run", listeners=[listener])
    assert 3 * report.metrics["valid_perplexity"] < report.metrics["valid_perplexity_unigram"]
    lines = listener.of("plan")[0]["lines"]
    assert any("tokens in rows of 16" in line and "25 % of the tokens are masked" in line for line in lines)
    assert any("documents are held out" in line for line in lines)
    context, target, predictions = listener.of("evaluate")[-1]["samples"][0]
    assert "[MASK]" in context and predictions.startswith(f"{target} ") and predictions.count("%") == 3
    model = load_filler(tmp_path / "run")
    filled = model("six six [MASK] six six six six six")
    assert filled.masks[0][0].token == "six" and filled.best_text == "six six six six six six six six"
    assert model.evaluate(read_documents([book]))["times_better"] > 2.5
    assert load_weights(tmp_path / "run")["token_embedding.weight"].square().mean().sqrt().item() == pytest.approx(0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_rescaled_embeddings_leave_the_outputs_unchanged(tied: bool) -> None:
    """Fine-tuning moves embeddings by steps of a fixed size: large ones would hardly move."""
    stack = StackConfig(num_layers=2, num_heads=2, feed_forward_size=32)
    config = BertConfig(vocab_size=30, hidden_size=16, stack=stack, head="masked", tie_embeddings=tied)
    model = Bert(config).eval()
    tokens = Tokens.from_rows([[3, 9, 4, 20], [7, 7]])
    initialize_bert(model, 1, std=0.4)
    hidden = model.encode(tokens)
    logits = model.logits(tokens)
    rescaled = rescale_embeddings(model.state_dict(), config)
    assert rescaled["token_embedding.weight"].square().mean().sqrt().item() == pytest.approx(0.02)
    model.load_state_dict(rescaled)
    np.testing.assert_allclose(model.encode(tokens), hidden, atol=2e-6)
    np.testing.assert_allclose(model.logits(tokens), logits, atol=1e-5 * np.abs(logits).max())
    small = {name: tensor / 100 for name, tensor in rescaled.items()}
    assert all(torch.equal(tensor, small[name]) for name, tensor in rescale_embeddings(small, config).items())


def test_it_soon_learns_to_predict_a_word_by_its_neighbours(tmp_path: Path) -> None:
    words = [f"{consonant}{vowel}" for consonant in "bdfgk" for vowel in "aeio"]
    path = tmp_path / "round.txt"
    lines = (" ".join(words[(start + step) % 20] for step in range(30)) for start in range(150))
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
def test_an_interrupted_run_ends_in_the_same_bits(
    book: Path, tmp_path: Path, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = {
        "training.steps": 14,
        "training.save_every": 3,
        "training.evaluate_every": 5,
        "training.average_checkpoints": 2,
    }
    settings = {**schedule, "masking.pretraining_dropout": 0.1, "masking.whole_word_masking": True, **settings}
    train_run(config(book, **settings), tmp_path / "uninterrupted")
    num_starts = sittings(
        MaskedLMObjective, lambda: train_run(config(book, **settings), tmp_path / "killed"), monkeypatch
    )
    assert num_starts > 1
    assert have_same_weights(tmp_path / "uninterrupted", tmp_path / "killed")
    assert log_without_throughput(tmp_path / "uninterrupted") == log_without_throughput(tmp_path / "killed")


def test_transformers_opens_the_saved_folder(book: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "run"
    train_run(config(book, **{"training.steps": 3, "masking.next_sentence": True}), folder)
    for model_class in (transformers.BertForMaskedLM, transformers.BertForPreTraining):
        model, report = model_class.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"] and not report["mismatched_keys"]
        assert model.config.hidden_dropout_prob == 0.1  # none in pretraining, but for fine-tuning
    assert not report["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "one [MASK] three"
    ids = tokenizer(text)["input_ids"]
    assert ids == load_filler(folder).special_tokens.encode(text, parse_special=True).ids
    assert json.loads((folder / "task.json").read_text())["task"] == "masked-lm"


def test_it_continues_a_pretrained_model(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 4}), tmp_path / "first")
    changes = {"training.steps": 1, "training.learning_rate": 1e-9, "pretrained": str(tmp_path / "first")}
    settings = {name: value for name, value in {**SMALL, **changes}.items() if not name.startswith(("bert.", "preset"))}
    run_config = MaskedLMRun.build({**settings, "data.train": (str(book),)})
    listener = Listener()
    train_run(run_config, tmp_path / "second", listeners=[listener])
    first_weights = load_weights(tmp_path / "first")
    torch.testing.assert_close(first_weights, load_weights(tmp_path / "second"), rtol=1e-3, atol=1e-5)
    assert (tmp_path / "first/tokenizer.json").read_bytes() == (tmp_path / "second/tokenizer.json").read_bytes()
    assert any("(as in " in line for line in listener.of("plan")[0]["lines"])


def test_a_new_vocabulary_starts_from_the_old_embeddings(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 4}), tmp_path / "first")
    other = tmp_path / "other.txt"
    other.write_text("\n".join(["one two sixteen", "three fourteen two"] * 30), "utf-8")
    changes = {"training.steps": 1, "training.learning_rate": 1e-9, "pretrained": str(tmp_path / "first")}
    train_run(config(other, **changes, **{"masking.new_vocabulary": True}), tmp_path / "second")
    old = load_encoder(tmp_path / "first")
    new = load_encoder(tmp_path / "second")
    assert new.config.vocab_size == new.tokenizer.vocab_size != old.config.vocab_size
    assert new.tokenizer.encode("sixteen").subwords == ["sixteen"] != old.tokenizer.encode("sixteen").subwords
    old_embedding = old.weights["token_embedding.weight"][old.tokenizer.backend.token_to_id("two")]
    new_embedding = new.weights["token_embedding.weight"][new.tokenizer.backend.token_to_id("two")]
    torch.testing.assert_close(old_embedding, new_embedding, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("words", ["texts", "sixteen\nfourteen\n"])
def test_an_extended_vocabulary_keeps_the_old_embeddings(book: Path, tmp_path: Path, words: str) -> None:
    train_run(config(book, **{"training.steps": 4}), tmp_path / "first")
    other = tmp_path / "other.txt"
    other.write_text("\n".join(["one two sixteen", "three fourteen two"] * 30), "utf-8")
    if words != "texts":
        (tmp_path / "words.txt").write_text(words, "utf-8")
        words = str(tmp_path / "words.txt")
    changes = {"training.steps": 1, "training.learning_rate": 1e-9, "pretrained": str(tmp_path / "first")}
    train_run(config(other, **changes, **{"tokenizer.extend": words, "lora.rank": 2}), tmp_path / "second")
    old = load_encoder(tmp_path / "first")
    new = load_encoder(tmp_path / "second")
    size = old.tokenizer.vocab_size
    assert new.config.vocab_size == new.tokenizer.vocab_size > size
    assert new.tokenizer.encode("two").ids == old.tokenizer.encode("two").ids
    assert new.tokenizer.encode("sixteen").subwords == ["sixteen"] != old.tokenizer.encode("sixteen").subwords
    old_embeddings = old.weights["token_embedding.weight"]
    embeddings = new.weights["token_embedding.weight"]
    torch.testing.assert_close(embeddings[:size], old_embeddings[:size], rtol=1e-3, atol=1e-5)
    pieces = old.tokenizer.encode("sixteen").ids
    (new_id,) = new.tokenizer.encode("sixteen").ids
    torch.testing.assert_close(embeddings[new_id], old_embeddings[pieces].mean(0), rtol=1e-3, atol=1e-5)
    assert len(new.weights["mlm_head_bias"]) == new.config.vocab_size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokenizer.extend": "texts"},
            r"--extend-vocabulary\) extends that of a model",
        ),
        ({"preset": "big"}, "preset must be one of auto, tiny, mini, small"),
        ({"documents.sequence_length": 3}, r"documents\.sequence_length \(3\) must be between 4 and 40"),
        ({"documents.sequence_length": 41}, "between 4 and 40, the positions of the model"),
        ({"pretrained": "nothing"}, "nothing"),
        ({"elmo.num_layers": 3}, r"unknown setting \'elmo.num_layers\' of the task masked-lm: it is a setting of elmo"),
        ({"architecture": "rnn"}, "unknown setting 'architecture' of the task masked-lm: it is a setting of translate"),
    ],
)
def test_wrong_settings_are_refused(book: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    if "pretrained" in changes:
        changes = {"pretrained": str(tmp_path / "nothing")}
    settings = {**SMALL, "data.train": (str(book),), **changes}
    if settings["preset"] != "custom" or "pretrained" in settings:
        settings = {name: value for name, value in settings.items() if not name.startswith("bert.")}
    if "pretrained" in settings:
        del settings["preset"]
    with pytest.raises((ConfigError, UsageError, CheckpointError), match=message):
        train_run(MaskedLMRun.build(settings), tmp_path / "run")


def test_text_without_a_known_word_is_refused(book: Path, tmp_path: Path) -> None:
    train_run(config(book, **{"training.steps": 1}), tmp_path / "first")
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("\n".join(["один два", "три"] * 30), "utf-8")
    with pytest.raises(DataError, match="no word in it is known"):
        train_run(config(foreign, pretrained=str(tmp_path / "first")), tmp_path / "second")
