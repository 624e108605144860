"""Training memory networks: learning, the linear start, clipping, and resuming with the same bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from regard.config.rnn_models import MemoryNetworkConfig
from regard.config.training import StoryTrainingConfig
from regard.data.babi import StoryQuestion, StoryQuestions, held_out_questions
from regard.errors import CheckpointError, DataError, TrainingError
from regard.models.memory_network import MemoryNetwork
from regard.tasks.story_memory import encode_stories, evaluate_restarts, predict_answers, resolve_sizes
from regard.tasks.story_qa import StoryVocabulary, supporting_accuracy
from regard.training.memory_trainer import (
    MemoryNetworkTrainer,
    clip_factors,
    published_defaults,
    sgd_step,
    train_memory_networks,
)

PEOPLE = ("Mary", "John", "Sandra")
ROOMS = ("kitchen", "garden", "office", "hallway")


def generate_stories(count: int, seed: int) -> StoryQuestions:
    """Stories of people who go to rooms; the question is about the last room of one of them."""
    rng = np.random.default_rng(seed)
    questions = []
    for _ in range(count):
        walks = [(rng.choice(PEOPLE), rng.choice(ROOMS)) for _ in range(rng.integers(1, 6))]
        person = walks[int(rng.integers(len(walks)))][0]
        last = max(index for index, (walker, _) in enumerate(walks) if walker == person)
        sentences = tuple(f"{walker} went to the {room}." for walker, room in walks)
        questions.append(StoryQuestion("walks", sentences, f"Where is {person}?", str(walks[last][1]), (last,)))
    return StoryQuestions.from_questions(questions)


QUICK = StoryTrainingConfig(restarts=3, epochs=4, linear_start_epochs=2, batch_size=16)


def build_small_trainer(config: StoryTrainingConfig = QUICK, **overrides: object) -> MemoryNetworkTrainer:
    stories = generate_stories(60, seed=1)
    vocabulary = StoryVocabulary.from_questions(stories)
    model_config = MemoryNetworkConfig(embedding_size=7, hops=2).override(overrides)
    model_config = resolve_sizes(model_config, stories, vocabulary)
    model = MemoryNetwork(model_config, config.restarts)
    model.initialize(config.seed)
    is_held_out = held_out_questions(stories, config.validation_share)
    return MemoryNetworkTrainer(model, encode_stories(stories, vocabulary, model_config), config, is_held_out)


def test_one_fact_stories_are_learned_and_the_fact_is_attended_to() -> None:
    config = StoryTrainingConfig(restarts=3, epochs=30, linear_start_epochs=4)
    saves = []
    trained = train_memory_networks(
        generate_stories(500, seed=1),
        MemoryNetworkConfig(embedding_size=20, hops=1),
        config,
        save=lambda *_: saves.append(1),
    )
    test = encode_stories(generate_stories(300, seed=2), trained.vocabulary, trained.model.config)
    assert evaluate_restarts(trained.model, test).error[0] < 5
    predictions = predict_answers(trained.model, trained.vocabulary, test)
    assert supporting_accuracy(test.references(trained.vocabulary), predictions)["walks"] > 90
    assert trained.errors[trained.member] == min(trained.errors)
    assert len(saves) == trained.progress.epoch == 34


def test_a_resumed_run_computes_the_same_bits() -> None:
    uninterrupted = build_small_trainer()
    while not uninterrupted.is_done:
        uninterrupted.train_epoch()
    trainer = build_small_trainer()
    for epochs in (1, 3):  # during and after the linear start
        for _ in range(epochs):
            trainer.train_epoch()
        resumed = build_small_trainer()
        resumed.resume(*trainer.state())
        trainer = resumed
    while not trainer.is_done:
        trainer.train_epoch()
    for expected, parameter in zip(uninterrupted.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(expected, parameter)
    assert replace(uninterrupted.progress, seconds=0) == replace(trainer.progress, seconds=0)
    other_seed = build_small_trainer(replace(QUICK, seed=2))
    other_seed.train_epoch()
    assert not torch.equal(other_seed.model.embeddings[0], trainer.model.embeddings[0])


def test_the_linear_start_ends_by_its_patience_or_its_number_of_epochs() -> None:
    late = build_small_trainer(replace(QUICK, linear_start_epochs=3))
    is_linear = [late.train_epoch()["linear"] for _ in range(7)]
    assert is_linear == [True] * 3 + [False] * 4
    assert late.is_done
    early = build_small_trainer(
        replace(QUICK, linear_start_epochs=50, linear_start_patience=1, learning_rate=1e-9, matrix_gradient_norm=1e-6)
    )
    losses = []
    while not early.progress.is_linear_start_over:
        losses.append(early.train_epoch()["held_out_loss"])
    assert len(losses) < 50
    assert losses[-1] >= min(losses[:-1])
    assert all(later < sooner for sooner, later in pairwise(losses[:-1]))
    assert not build_small_trainer(replace(QUICK, linear_start=False)).train_epoch()["linear"]


def test_the_learning_rate_is_halved_and_defaults_are_the_published_ones() -> None:
    single = published_defaults(StoryTrainingConfig(), 1)
    joint = published_defaults(StoryTrainingConfig(linear_start=False), 20)
    assert (single.epochs, single.lr_halving_epochs, single.learning_rate) == (100, 25, 0.005)
    assert single.linear_start_epochs == 20
    assert (joint.epochs, joint.lr_halving_epochs, joint.learning_rate) == (60, 15, 0.01)
    config = replace(QUICK, epochs=6, lr_halving_epochs=2, learning_rate=0.04)
    trainer = build_small_trainer(config)
    rates = [trainer.train_epoch()["learning_rate"] for _ in range(8)]
    assert rates == pytest.approx([0.04, 0.04, 0.04, 0.02, 0.02, 0.01, 0.01, 0.005])


def test_each_matrix_is_clipped_by_its_largest_singular_value() -> None:
    gradients = torch.randn(5, 3, 7) * torch.tensor([0.1, 1, 2, 3, 10]).view(-1, 1, 1)
    factors = clip_factors(gradients, 2.0)
    norms = torch.linalg.svdvals(gradients)[:, 0]
    torch.testing.assert_close(factors, (2 / norms).clamp_max(1), rtol=1e-4, atol=1e-4)
    assert clip_factors(gradients, 0).tolist() == [1] * 5
    gradients[1, 0, 0] = float("nan")
    assert clip_factors(gradients, 2.0)[1] == 0


@pytest.mark.parametrize("tying", ["adjacent", "layerwise"])
def test_a_step_lowers_the_loss_and_a_diverged_restart_affects_no_other(tying: str) -> None:
    trainer = build_small_trainer(tying=tying)
    model = trainer.model
    indices = np.arange(40)
    loss_before = model.loss(trainer.train.batch(indices), trainer.train.answers[indices])[0]
    loss_before.sum().backward()
    table_before = model.embeddings[0].detach().clone()
    gradient = model.embeddings[0].grad
    assert gradient is not None
    gradient[0, 1] = float("inf")
    sgd_step(model, 1e-3, 40)
    loss_after = model.loss(trainer.train.batch(indices), trainer.train.answers[indices])[0]
    assert (loss_after < loss_before).all()  # the other tables of the diverged restart are still updated
    assert torch.equal(model.embeddings[0][:, 1], table_before[:, 1])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_diverged_restart_is_left_out_and_the_run_ends_when_all_diverge() -> None:
    trainer = build_small_trainer()
    with torch.no_grad():
        trainer.model.embeddings[0][:, 1] = float("nan")
    trainer.train_epoch()
    assert trainer.progress.diverged == [1]
    assert trainer.best_restart()[0] != 1
    with torch.no_grad():
        trainer.model.embeddings[0].fill_(float("nan"))
    with pytest.raises(TrainingError, match="no loss of 3 restarts is finite: lower the learning rate"):
        trainer.train_epoch()


def test_bad_input_is_rejected() -> None:
    stories = generate_stories(5, seed=1)
    mixed = StoryQuestions.from_questions(
        [*stories.questions, StoryQuestion("other", ("kuh muh",), "wau wau?", "miau")]
    )
    with pytest.raises(DataError, match="walks: shares none of its 12 words with any other of the 2 files"):
        train_memory_networks(mixed)
    weights, progress = build_small_trainer().state()
    weights["embeddings.0"] = weights["embeddings.0"][1:]
    with pytest.raises(CheckpointError, match=r"saved state: embeddings.0 should be \[17, 3, 7\] but is \[16, 3, 7\]"):
        build_small_trainer().resume(weights, progress)
