"""The recurrent encoder–decoder: steps equal the whole, rows equal themselves alone, gradients those of plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.dropout import Noise
from regard.attention.scores import Additive
from regard.attention.trace import trace
from regard.config.inference import DecodingConfig
from regard.config.rnn_models import SEQ2SEQ_PRESETS, Seq2SeqConfig
from regard.decoding.search import search
from regard.errors import ConfigError, UsageError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.layers.cells import State
from regard.models.seq2seq import Seq2Seq
from regard.tokens import Tokens
from tests.models.encoder_decoders import steps_equal_the_whole
from tests.models.layers.plain import plain_step

SOURCE = Tokens.from_rows([[5, 6, 7, 8, 1], [9, 1], [10, 11, 1]])
TARGET = Tokens.from_rows([[12, 13], [14, 15, 16, 17], [18]])
EMBEDDING, WIDTH, VOCABULARY = 7, 11, 23


def small(**changes: object) -> Seq2Seq:
    config = Seq2SeqConfig(
        source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, embedding_size=EMBEDDING, hidden_size=WIDTH
    )
    model = build_model(config.override(changes))
    initialize_weights(model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # sharp enough that a mistake shows
    return model.eval()


VARIANTS: list[dict[str, object]] = [
    *(
        {"cell": cell, "attention": kind, "input_feeding": feeding, "directions": "one"}
        for cell in ("lstm", "gru")
        for kind in ("additive", "dot", "bilinear", "concat")
        for feeding in ("none", "context", "output")
    ),
    *(
        {"cell": cell, "attention": "additive", "input_feeding": feeding, "num_layers": 3, "hard_attention": choice}
        for cell in ("lstm", "gru")
        for feeding, choice in (("none", "soft"), ("context", "straight_through"), ("output", "reinforce"))
    ),
    *(
        {"cell": cell, "attention": "none", "source_context": told}
        for cell in ("lstm", "gru")
        for told in ("start", "every")
    ),
    {"attention": "none", "directions": "one", "bridge": "copy", "num_layers": 2},
    {"share_embeddings": False, "target_vocab_size": 29, "attention": "bilinear"},
    {"tie_embeddings": False, "output_bias": True, "scale_embedding": False, "hard_attention": "reinforce"},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_steps_equal_the_whole_and_rows_equal_themselves_alone(changes: dict[str, object]) -> None:
    model = small(**changes)
    whole = steps_equal_the_whole(model, SOURCE, TARGET, 1e-4)
    turned = [Tokens.from_rows([side.row(row) for row in (2, 0, 1)]) for side in (SOURCE, TARGET)]
    for row, found in zip((2, 0, 1), model.target_logprobs(*turned), strict=True):
        np.testing.assert_allclose(found, whole[row], atol=1e-4)


def plain_loss(model: Seq2Seq, source: list[int], target: list[int]) -> Tensor:
    """The loss of one pair, token by token, as the papers write it."""
    config, decoder = model.config, model.decoder
    words = model.words.weight * EMBEDDING**0.5
    states, last = [words[token][None] for token in source], []
    for cells in model.encoder.layers:
        sides, ends = [], []
        for cell, back in zip(cells, (1, -1), strict=False):
            state: State = (words.new_zeros(1, WIDTH),) * cell.parts
            outputs = []
            for given in states[::back]:
                state = plain_step(cell, given @ cell.input_weight.T, state)
                outputs.append(state[0])
            sides.append(outputs[::back])
            ends.append(state)
        states = [torch.cat(parts, dim=1) for parts in zip(*sides, strict=True)]
        last.append([torch.cat(parts, dim=1) for parts in zip(*ends, strict=True)])
    memory = torch.cat(states)  # [K, D]
    layers: list[State] = []
    for bridges, (output, *rest) in zip(decoder.bridge, last, strict=True):
        layers.append((torch.tanh(bridges[0](output)), *(bridges[1](part) for part in rest)))
    whole, written = layers[-1][0], words.new_zeros(1, EMBEDDING)

    def look(query: Tensor) -> Tensor:
        score = decoder.score
        if isinstance(score, Additive):
            scores = score.weigh(torch.tanh(score.query(query) + score.key(memory)))[:, 0]
        else:
            scores = score.prepare(memory) @ query[0]
        return (torch.softmax(scores, dim=0) @ memory)[None]

    loss = words.new_zeros(())
    for given, wanted in zip([config.bos_id, *target], [*target, config.eos_id], strict=True):
        first, inputs = decoder.cells[0], words[given][None]
        seen = whole if config.source_context == "every" else None
        if config.input_feeding == "context":
            seen = look(layers[-1][0])
            sums = inputs @ first.input_weight.T + seen @ first.feed_weight.T
        elif config.input_feeding == "output":
            sums = inputs @ first.input_weight.T + written @ first.feed_weight.T
        else:
            sums = (inputs if seen is None else torch.cat([inputs, seen], dim=1)) @ first.input_weight.T
        for number, cell in enumerate(decoder.cells):
            layers[number] = plain_step(
                cell, layers[number - 1][0] @ cell.input_weight.T if number else sums, layers[number]
            )
        if config.attention != "none" and seen is None:
            seen = look(layers[-1][0])
        read = decoder.readout(layers[-1][0])
        written = torch.tanh(read if seen is None else read + decoder.readout_context(seen))
        loss = loss - torch.log_softmax(written @ model.output_weight.T, dim=1)[0, wanted]
    return loss


SOFT = [
    {key: value for key, value in changes.items() if key != "hard_attention"}
    for changes in VARIANTS
    if not changes.keys() & {"bridge", "share_embeddings", "tie_embeddings"}
]


@pytest.mark.parametrize("changes", SOFT, ids=str)
def test_loss_and_gradients_are_those_of_plain_loops(changes: dict[str, object]) -> None:
    model = small(**changes, dropout=0.0).double()
    gradients = []
    for noise in (None, Noise(1, 1)):  # the second rounds the number of places
        model.zero_grad()
        loss, _ = model.loss(SOURCE, TARGET, noise=noise)
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    model.zero_grad()
    pairs = zip(SOURCE, TARGET, strict=True)
    wanted = sum(plain_loss(model, source.tolist(), target.tolist()) for source, target in pairs)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    wanted.backward()
    plain = [parameter.grad for parameter in model.parameters()]
    for found in gradients:
        torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)  # the vocabulary's loss adds up in float32


@pytest.mark.parametrize(
    "changes",
    [
        {"input_feeding": "context", "num_layers": 2, "tie_embeddings": False, "output_bias": True},
        {"cell": "gru", "attention": "bilinear", "input_feeding": "output"},
        {"cell": "gru", "attention": "none", "source_context": "every"},
        {"attention": "concat", "hard_attention": "straight_through"},
        {"input_feeding": "context", "hard_attention": "straight_through"},
        {"attention": "bilinear", "hard_attention": "reinforce"},
        {"input_feeding": "context", "hard_attention": "reinforce"},
    ],
    ids=str,
)
@pytest.mark.parametrize("format", [torch.float32, torch.bfloat16])
def test_every_weight_gets_a_gradient_and_noise_is_a_function(changes: dict[str, object], format: torch.dtype) -> None:
    model = small(**changes).to(format)
    found = []
    for _ in range(2):
        model.zero_grad()
        smoothed, plain = model.loss(SOURCE, TARGET, smoothing=0.1, noise=Noise(1, 1))
        smoothed.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
            assert torch.isfinite(parameter.grad).all(), name
        found.append([smoothed.detach(), plain, *(parameter.grad.clone() for parameter in model.parameters())])
        torch.manual_seed(7)  # nothing depends on torch's own chance
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    other = model.loss(SOURCE, TARGET, smoothing=0.1, noise=Noise(1, 2))[1]
    assert other.item() != plain.item()
    silent = model.loss(SOURCE, TARGET)[1]
    told = -sum(float(row.sum()) for row in model.target_logprobs(SOURCE, TARGET))
    assert silent.item() == pytest.approx(told, rel=1e-5 if format == torch.float32 else 0.02)


@pytest.mark.parametrize("feeding", ["none", "context", "output"])
@pytest.mark.parametrize("choice", ["soft", "straight_through"])
def test_what_is_seen_is_a_share_of_one_and_a_choice_is_one_place(feeding: str, choice: str) -> None:
    model = small(input_feeding=feeding, hard_attention=choice)
    with trace(full_precision=True) as seen:
        whole = model.target_logprobs(SOURCE, TARGET)
    np.testing.assert_array_equal(np.concatenate(whole), np.concatenate(model.target_logprobs(SOURCE, TARGET)))
    assert [*seen] == ["decoder.attention"]
    weights = seen["decoder.attention"].weights
    assert weights.shape == (3, 1, 5, 5)  # sentences, one head, longest target with its start, longest source
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert (weights[1, :, :, 2:] == 0).all()  # nobody looks past the end of the second source
    assert bool(((weights == 0) | (weights == 1)).all()) == (choice != "soft")
    state = model.start(SOURCE, max_length=4)
    model.keep_attention(state)
    for place, token in enumerate(([3, 3, 3], [12, 14, 18])):
        _, state = model.step(np.array(token), state, 1)
        looked = model.last_attention(state)
        np.testing.assert_allclose(looked, weights[:, 0, place], atol=1e-5)


@pytest.mark.parametrize("feeding", ["none", "context", "output"])
def test_rows_can_be_kept_dropped_and_repeated_at_any_time(feeding: str) -> None:
    model = small(input_feeding=feeding, attention="bilinear", num_layers=2)
    state = model.start(SOURCE, max_length=8).select(np.array([0, 0, 1, 1, 2, 2]))
    model.keep_attention(state)
    _, state = model.step(np.full(6, 3), state, 2)
    assert model.last_attention(state).shape == (6, 5)
    state = state.select(np.array([1, 0, 5]))  # one sentence gone, unequal numbers of rows
    found, _ = model.step(np.array([7, 8, 9]), state, 0)
    for place, (sentence, token) in enumerate(((0, 7), (0, 8), (2, 9))):
        lone = model.start(Tokens.from_rows([SOURCE.row(sentence)]), max_length=8)
        _, lone = model.step(np.array([3]), lone, 1)
        wanted, _ = model.step(np.array([token]), lone, 0)
        np.testing.assert_allclose(found.logprobs[place], wanted.logprobs[0], atol=1e-4)


@pytest.mark.parametrize("attention", ["none", "additive"])
def test_searches_run_on_it(attention: str) -> None:
    model = small(attention=attention).pack()
    for beam in (1, 3):
        found = search(model, SOURCE, DecodingConfig(beam=beam, nbest=beam), max_lengths=[5, 7, 11])
        for hypotheses in found:
            assert len(hypotheses) == beam
        for row, (hypothesis, *_) in enumerate(found):
            source, target = Tokens.from_rows([SOURCE.row(row)]), Tokens.from_rows([hypothesis.ids])
            assert hypothesis.logprob == pytest.approx(float(model.target_logprobs(source, target)[0].sum()), abs=1e-3)
    covering = DecodingConfig(beam=3, coverage_penalty=0.2)
    if attention == "none":
        with pytest.raises(UsageError, match="looks nowhere: set coverage to 0"):
            search(model, SOURCE, covering, max_lengths=[5, 7, 11])
    else:
        assert len(search(model, SOURCE, covering, max_lengths=[5, 7, 11])) == 3


def test_rewards_make_good_places_likelier_than_the_baseline() -> None:
    model = small(attention="bilinear", hard_attention="reinforce", dropout=0.0)
    plain = model.loss(SOURCE, TARGET, noise=Noise(1, 1))
    silent = model.loss(SOURCE, TARGET)
    assert plain[0].item() == pytest.approx(plain[1].item())  # rewards have a gradient and no value
    assert plain[1].item() != silent[1].item()  # in training places are drawn, in use the best is taken
    alone = Tokens.from_rows([SOURCE.row(0)]), Tokens.from_rows([TARGET.row(0)])
    assert torch.isfinite(model.loss(*alone, noise=Noise(1, 1))[0])  # nobody to compare with


def test_gates_count_as_matrices_of_their_own() -> None:
    shapes = small(input_feeding="context", cell="gru").hidden_matrices()
    assert shapes["decoder.layers.0.gru_state.weight"] == (WIDTH, WIDTH)
    assert shapes["decoder.layers.0.gru_feed.weight"] == (WIDTH, 2 * WIDTH)
    assert shapes["encoder.layers.0.1.gru_input.weight"] == (WIDTH, EMBEDDING)
    assert small().hidden_matrices()["decoder.layers.0.lstm_state.weight"] == (WIDTH, WIDTH)
    assert "words.weight" not in shapes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "dot", "directions": "both"}, "set directions to one, or attention to bilinear"),
        ({"bridge": "copy"}, "set bridge to dense"),
        ({"attention": "none", "input_feeding": "context"}, r"input_feeding \(context\) needs attention"),
        ({"attention": "none", "hard_attention": "reinforce"}, r"hard_attention \(reinforce\) needs attention"),
        ({"source_context": "every"}, "without attention"),
        ({"source_vocab_size": 3}, "set shared to false"),
        ({"cell": "gro"}, "did you mean gru"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Seq2SeqConfig().override(changes)
    assert set(SEQ2SEQ_PRESETS) >= {"tiny", "small"}


@pytest.mark.parametrize("changes", [{"input_feeding": "context"}, {"cell": "gru", "attention": "bilinear"}], ids=str)
def test_it_learns_to_write_digits_in_reverse(changes: dict[str, object]) -> None:
    model = small(**changes, embedding_size=16, hidden_size=32, dropout=0.0)
    initialize_weights(model, seed=1)
    generator = np.random.default_rng(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def examples(count: int) -> tuple[Tokens, Tokens]:
        rows = [generator.integers(5, 15, generator.integers(2, 6)).tolist() for _ in range(count)]
        return Tokens.from_rows([[*row, 1] for row in rows]), Tokens.from_rows([row[::-1] for row in rows])

    for step in range(250):
        source, target = examples(32)
        optimizer.zero_grad()
        (model.loss(source, target, noise=Noise(1, step))[0] / 32).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    source, target = examples(20)
    found = search(model, source, DecodingConfig(beam=1), max_lengths=[7] * 20)
    right = sum(one[0].ids == row.tolist() for one, row in zip(found, target, strict=True))
    assert right >= 16
