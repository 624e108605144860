"""What a run chooses for its user."""

from __future__ import annotations

from itertools import product

import pytest

from regard.config.data import TokenizerConfig
from regard.config.run import RunConfig
from regard.config.training import TrainingConfig
from regard.tasks.translation import Languages
from regard.text.learn import learn
from regard.training.plan import model_config, planned_updates, training_config

LETTERS = learn(["a b c d"] * 20, TokenizerConfig(kind="characters"))
WORDS = learn(["".join(word) for word in product("abcdefghij", repeat=3)] * 2, TokenizerConfig(kind="words"))


@pytest.mark.parametrize(
    ("tokenizer", "tokens", "wanted"),
    [(LETTERS, 100_000, "micro"), (WORDS, 400_000, "tiny"), (WORDS, 5_000_000, "small"), (LETTERS, 50_000_000, "base")],
)
def test_the_preset_follows_the_data_and_says_why(tokenizer: object, tokens: int, wanted: str) -> None:
    languages = Languages(tokenizer, tokenizer)  # type: ignore[arg-type]
    chosen, reason = model_config(RunConfig(), languages, tokens)
    assert reason.startswith(f"{wanted}, for {tokens:,} target tokens")
    assert chosen.shared
    assert chosen.target_vocabulary == languages.target.size
    assert chosen.end == languages.target.end


def test_a_named_preset_is_taken_as_asked() -> None:
    chosen, reason = model_config(RunConfig(preset="big"), Languages(LETTERS, WORDS), 1)
    assert (chosen.width, reason) == (1024, "as asked")
    assert not chosen.shared


def test_every_automatic_setting_is_chosen_and_every_given_one_kept() -> None:
    chosen = training_config(TrainingConfig(), width=128, target_tokens=450_000)
    assert (chosen.batch_tokens, chosen.optimizer, chosen.schedule, chosen.epochs) == (2048, "muon", "root", 89.0)
    assert (chosen.learning_rate, chosen.matrix_rate) == (2 / 128, 0.02)
    gentle = training_config(TrainingConfig(), width=128, target_tokens=450_000, goes_on=True)
    assert gentle.learning_rate == chosen.learning_rate / 20
    plain = training_config(TrainingConfig(optimizer="adamw"), width=128, target_tokens=450_000)
    assert (plain.learning_rate, plain.schedule) == (0.5 / 128, "cosine")
    given = TrainingConfig(
        batch_tokens=777, optimizer="muon", learning_rate=0.5, matrix_rate=0.1, schedule="constant", steps=3
    )
    assert training_config(given, width=128, target_tokens=450_000) == given


def test_a_plan_is_as_long_as_the_first_of_its_limits() -> None:
    assert planned_updates(TrainingConfig(steps=70, epochs=2, minutes=9), 100, 0.5) == 70
    assert planned_updates(TrainingConfig(epochs=2, accumulate=4), 100, 0.5) == 50
    assert planned_updates(TrainingConfig(minutes=2), 100, 0.5) == 240
