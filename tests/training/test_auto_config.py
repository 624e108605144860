"""What a run chooses for its user."""

from __future__ import annotations

from itertools import product

import pytest

from regard.config.data import TokenizerConfig
from regard.config.runs import RunConfig
from regard.config.training import TrainingConfig
from regard.tasks.translation import TokenizerPair
from regard.text.train import train_tokenizer
from regard.training.auto_config import choose_translation_model, estimate_updates, resolve_training_config

LETTERS = train_tokenizer(["a b c d"] * 20, TokenizerConfig(kind="characters"))
WORDS = train_tokenizer(["".join(word) for word in product("abcdefghij", repeat=3)] * 2, TokenizerConfig(kind="words"))


@pytest.mark.parametrize(
    ("tokenizer", "tokens", "wanted"),
    [(LETTERS, 100_000, "micro"), (WORDS, 400_000, "tiny"), (WORDS, 5_000_000, "small"), (LETTERS, 50_000_000, "base")],
)
def test_the_preset_follows_the_data_and_says_why(tokenizer: object, tokens: int, wanted: str) -> None:
    languages = TokenizerPair(tokenizer, tokenizer)  # type: ignore[arg-type]
    chosen, reason = choose_translation_model(RunConfig(), languages, tokens)
    assert reason.startswith(f"{wanted}, for {tokens:,} target tokens")
    assert chosen.share_embeddings
    assert chosen.target_vocab_size == languages.target.vocab_size
    assert chosen.eos_id == languages.target.eos_id


def test_a_named_preset_is_taken_as_asked() -> None:
    chosen, reason = choose_translation_model(RunConfig(preset="big"), TokenizerPair(LETTERS, WORDS), 1)
    assert (chosen.hidden_size, reason) == (1024, "as asked")
    assert not chosen.share_embeddings


def test_every_automatic_setting_is_chosen_and_every_given_one_kept() -> None:
    chosen = resolve_training_config(TrainingConfig(), hidden_size=128, target_tokens=450_000)
    assert (chosen.batch_tokens, chosen.optimizer, chosen.schedule, chosen.epochs) == (2048, "muon", "root", 89.0)
    assert (chosen.learning_rate, chosen.muon_learning_rate) == (2 / 128, 0.02)
    gentle = resolve_training_config(TrainingConfig(), hidden_size=128, target_tokens=450_000, is_pretrained=True)
    assert gentle.learning_rate == chosen.learning_rate / 20
    plain = resolve_training_config(TrainingConfig(optimizer="adamw"), hidden_size=128, target_tokens=450_000)
    assert (plain.learning_rate, plain.schedule) == (0.5 / 128, "cosine")
    given = TrainingConfig(
        batch_tokens=777, optimizer="muon", learning_rate=0.5, muon_learning_rate=0.1, schedule="constant", steps=3
    )
    assert resolve_training_config(given, hidden_size=128, target_tokens=450_000) == given


def test_a_plan_is_as_long_as_the_first_of_its_limits() -> None:
    assert estimate_updates(TrainingConfig(steps=70, epochs=2, minutes=9), 100, 0.5) == 70
    assert estimate_updates(TrainingConfig(epochs=2, accumulation_steps=4), 100, 0.5) == 50
    assert estimate_updates(TrainingConfig(minutes=2), 100, 0.5) == 240
