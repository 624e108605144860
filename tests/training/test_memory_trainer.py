"""Training memory networks: what is learned, the linear start, clipping, and going on after a stop bit by bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from regard.config.rnn_models import MemoryNetworkConfig
from regard.config.training import MemoryTrainingConfig
from regard.data.babi import StoryQuestion, StoryQuestions
from regard.errors import CheckpointError, DataError, TrainingError
from regard.models.memory_network import MemoryNetwork
from regard.tasks.story_qa import (
    StoryVocabulary,
    encode_stories,
    evaluate_restarts,
    predict_answers,
    resolve_sizes,
    supporting_accuracy,
)
from regard.training.memory_trainer import (
    MemoryNetworkTrainer,
    clip_factors,
    published_defaults,
    sgd_step,
    train_memory_networks,
)

PEOPLE, PLACES = ("Mary", "John", "Sandra"), ("kitchen", "garden", "office", "hallway")


def made(count: int, seed: int) -> StoryQuestions:
    """People go to places; the last place of one of them is asked for."""
    draw = np.random.default_rng(seed)
    questions = []
    for _ in range(count):
        walks = [(draw.choice(PEOPLE), draw.choice(PLACES)) for _ in range(draw.integers(1, 6))]
        number = int(draw.integers(len(walks)))
        who = walks[number][0]
        last = max(place for place, (walker, _) in enumerate(walks) if walker == who)
        told = tuple(f"{walker} went to the {place}." for walker, place in walks)
        questions.append(StoryQuestion("walks", told, f"Where is {who}?", str(walks[last][1]), (last,)))
    return StoryQuestions.of(questions)


QUICK = MemoryTrainingConfig(restarts=3, epochs=4, linear_start_epochs=2, batch_size=16)


def trainer(config: MemoryTrainingConfig = QUICK, **changes: object) -> MemoryNetworkTrainer:
    stories = made(60, seed=1)
    vocabulary = StoryVocabulary.of(stories)
    shape = resolve_sizes(MemoryNetworkConfig(embedding_size=7, hops=2).override(changes), stories, vocabulary)
    model = MemoryNetwork(shape, config.restarts)
    model.initialize(config.seed)
    return MemoryNetworkTrainer(model, encode_stories(stories, vocabulary, shape), config)


def test_one_fact_stories_are_learned_and_the_fact_is_seen() -> None:
    config = MemoryTrainingConfig(restarts=3, epochs=30, linear_start_epochs=4)
    told = []
    trained = train_memory_networks(
        made(500, seed=1), MemoryNetworkConfig(embedding_size=20, hops=1), config, save=lambda *_: told.append(1)
    )
    test = encode_stories(made(300, seed=2), trained.vocabulary, trained.model.config)
    assert evaluate_restarts(trained.model, test).error[0] < 5
    found = supporting_accuracy(test, predict_answers(trained.model, trained.vocabulary, test), trained.vocabulary)
    assert found["walks"] > 90
    assert trained.errors[trained.member] == min(trained.errors)
    assert len(told) == trained.progress.epoch == 34


def test_a_run_that_goes_on_computes_the_same_bits() -> None:
    whole, first = trainer(), trainer()
    while not whole.is_done:
        whole.step()
    for passes in (1, 3):  # before and after the softmax comes
        for _ in range(passes):
            first.step()
        again = trainer()
        again.resume(*first.state())
        first = again
    while not first.is_done:
        first.step()
    for one, other in zip(whole.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert replace(whole.progress, seconds=0) == replace(first.progress, seconds=0)
    other = trainer(replace(QUICK, seed=2))
    other.step()
    assert not torch.equal(other.model.tables[0], first.model.tables[0])


def test_softmax_comes_when_the_held_out_loss_stops_falling_or_time_is_up() -> None:
    late = trainer(replace(QUICK, linear_start_epochs=3))
    seen = [late.step()["linear"] for _ in range(7)]
    assert seen == [True] * 3 + [False] * 4
    assert late.is_done
    early = trainer(
        replace(QUICK, linear_start_epochs=50, linear_start_patience=1, learning_rate=1e-9, max_gradient_norm=1e-6)
    )
    losses = []
    while not early.progress.switched:
        losses.append(early.step()["held_out_loss"])
    assert len(losses) < 50
    assert losses[-1] >= min(losses[:-1])
    assert all(later < sooner for sooner, later in pairwise(losses[:-1]))
    assert not trainer(replace(QUICK, linear_start=False)).step()["linear"]


def test_the_learning_rate_is_halved_and_choices_are_the_published_ones() -> None:
    alone, joint = (
        published_defaults(MemoryTrainingConfig(), 1),
        published_defaults(MemoryTrainingConfig(linear_start=False), 20),
    )
    assert (alone.epochs, alone.lr_halving_epochs, alone.learning_rate, alone.linear_start_epochs) == (
        100,
        25,
        0.005,
        20,
    )
    assert (joint.epochs, joint.lr_halving_epochs, joint.learning_rate) == (60, 15, 0.01)
    config = replace(QUICK, epochs=6, lr_halving_epochs=2, learning_rate=0.04)
    run = trainer(config)
    rates = [run.step()["learning_rate"] for _ in range(8)]
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
def test_a_step_goes_down_and_a_broken_member_stays_alone(tying: str) -> None:
    run = trainer(tying=tying)
    model, numbers = run.model, np.arange(40)
    before = model.loss(run.train.batch(numbers), run.train.answers[numbers])[0]
    before.sum().backward()
    old = model.tables[0].detach().clone()
    grad = model.tables[0].grad
    assert grad is not None
    grad[0, 1] = float("inf")
    sgd_step(model, 1e-3, 40)
    after = model.loss(run.train.batch(numbers), run.train.answers[numbers])[0]
    assert (after < before).all()  # the other tables of the broken member still move
    assert torch.equal(model.tables[0][:, 1], old[:, 1])
    assert all(part.grad is None for part in model.parameters())


def test_a_start_whose_numbers_break_is_left_out_and_all_of_them_end_the_run() -> None:
    run = trainer()
    with torch.no_grad():
        run.model.tables[0][:, 1] = float("nan")
    run.step()
    assert run.progress.diverged == [1]
    assert run.best()[0] != 1
    with torch.no_grad():
        run.model.tables[0].fill_(float("nan"))
    with pytest.raises(TrainingError, match="no loss of the 3 starts is finite: lower the learning rate"):
        run.step()


def test_bad_input_is_refused() -> None:
    mixed = StoryQuestions.of([*made(5, seed=1).questions, StoryQuestion("other", ("kuh muh",), "wau wau?", "miau")])
    with pytest.raises(DataError, match="walks: shares none of its 12 words with any other of the 2 files"):
        train_memory_networks(mixed)
    weights, progress = trainer().state()
    weights["tables.0"] = weights["tables.0"][1:]
    with pytest.raises(CheckpointError, match=r"saved state: tables.0 should be \[17, 3, 7\] but is \[16, 3, 7\]"):
        trainer().resume(weights, progress)
