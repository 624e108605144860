"""Settings that a run chooses for its user."""

from __future__ import annotations

from itertools import product

import pytest

from regard.config.data import TokenizerConfig
from regard.config.task_runs import TranslateRun
from regard.config.training import TrainingConfig
from regard.tasks.translation import TokenizerPair
from regard.text.train import train_tokenizer
from regard.training.auto_config import choose_translation_model, estimate_updates, resolve_training_config

LETTERS = train_tokenizer(["a b c d"] * 20, TokenizerConfig(kind="characters"))
WORDS = train_tokenizer(["".join(word) for word in product("abcdefghij", repeat=3)] * 2, TokenizerConfig(kind="words"))


@pytest.mark.parametrize(
    ("tokenizer", "tokens", "preset"),
    [(LETTERS, 100_000, "micro"), (WORDS, 400_000, "tiny"), (WORDS, 5_000_000, "small"), (LETTERS, 50_000_000, "base")],
)
def test_the_preset_follows_the_data_and_has_a_reason(tokenizer: object, tokens: int, preset: str) -> None:
    tokenizers = TokenizerPair(tokenizer, tokenizer)  # type: ignore[arg-type]
    model, reason = choose_translation_model(TranslateRun(), tokenizers, tokens)
    assert reason.startswith(f"{preset}, for {tokens:,} target tokens")
    assert model.share_embeddings
    assert model.target_vocab_size == tokenizers.target.vocab_size
    assert model.eos_id == tokenizers.target.eos_id


def test_a_requested_preset_is_used() -> None:
    model, reason = choose_translation_model(TranslateRun(preset="big"), TokenizerPair(LETTERS, WORDS), 1)
    assert (model.hidden_size, reason) == (1024, "requested")
    assert not model.share_embeddings


def test_automatic_settings_are_filled_in_and_others_are_kept() -> None:
    resolved = resolve_training_config(TrainingConfig(), hidden_size=128, target_tokens=450_000)
    assert (resolved.batch_tokens, resolved.optimizer) == (2048, "muon")
    assert (resolved.schedule, resolved.epochs) == ("root", 89.0)
    assert (resolved.learning_rate, resolved.muon_learning_rate) == (2 / 128, 0.02)
    pretrained = resolve_training_config(TrainingConfig(), hidden_size=128, target_tokens=450_000, is_pretrained=True)
    assert pretrained.learning_rate == resolved.learning_rate / 20
    adamw = resolve_training_config(TrainingConfig(optimizer="adamw"), hidden_size=128, target_tokens=450_000)
    assert (adamw.learning_rate, adamw.schedule) == (0.5 / 128, "cosine")
    explicit = TrainingConfig(
        batch_tokens=777, optimizer="muon", learning_rate=0.5, muon_learning_rate=0.1, schedule="constant", steps=3
    )
    assert resolve_training_config(explicit, hidden_size=128, target_tokens=450_000) == explicit


def test_a_training_is_as_long_as_the_first_of_its_limits() -> None:
    assert estimate_updates(TrainingConfig(steps=70, epochs=2, minutes=9), 100, 0.5) == 70
    assert estimate_updates(TrainingConfig(epochs=2, accumulation_steps=4), 100, 0.5) == 50
    assert estimate_updates(TrainingConfig(minutes=2), 100, 0.5) == 240
