"""The recurrent encoder–decoder: steps equal the forward pass, loss and gradients equal those of plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.dropout import Noise
from regard.attention.scores import Additive, build_normalizer
from regard.attention.trace import trace
from regard.config.inference import DecodingConfig
from regard.config.rnn_models import SEQ2SEQ_PRESETS, Seq2SeqConfig
from regard.decoding.search import search
from regard.errors import ConfigError, UsageError
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.models.layers.cells import State
from regard.models.seq2seq import Seq2Seq
from regard.packed_tokens import Tokens
from tests.models.encoder_decoders import check_steps_equal_the_forward_pass
from tests.models.layers.plain import plain_step

SOURCE = Tokens.from_rows([[5, 6, 7, 8, 1], [9, 1], [10, 11, 1]])
TARGET = Tokens.from_rows([[12, 13], [14, 15, 16, 17], [18]])
EMBEDDING_SIZE, HIDDEN_SIZE, VOCAB_SIZE = 7, 11, 23


def build_seq2seq(**changes: object) -> Seq2Seq:
    config = Seq2SeqConfig(
        source_vocab_size=VOCAB_SIZE,
        target_vocab_size=VOCAB_SIZE,
        embedding_size=EMBEDDING_SIZE,
        hidden_size=HIDDEN_SIZE,
    )
    model = build_model(config.override(changes))
    initialize_weights(model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # sharp enough that a mistake shows
    return model.eval()


VARIANTS: list[dict[str, object]] = [
    *(
        {"cell": cell, "attention": attention, "input_feeding": feeding, "directions": "one"}
        for cell in ("lstm", "gru")
        for attention in ("additive", "dot", "bilinear", "concat")
        for feeding in ("none", "context", "output")
    ),
    *(
        {"cell": cell, "attention": "additive", "input_feeding": feeding, "num_layers": 3, "hard_attention": mode}
        for cell in ("lstm", "gru")
        for feeding, mode in (("none", "none"), ("context", "straight-through"), ("output", "reinforce"))
    ),
    *(
        {"cell": cell, "attention": "none", "source_context": source_context}
        for cell in ("lstm", "gru")
        for source_context in ("start", "every")
    ),
    {"attention": "none", "directions": "one", "bridge": "copy", "num_layers": 2},
    {"share_embeddings": False, "target_vocab_size": 29, "attention": "bilinear"},
    {"tie_embeddings": False, "output_bias": True, "scale_embedding": False, "hard_attention": "reinforce"},
    *({"attention_window": 1, "input_feeding": feeding} for feeding in ("none", "context", "output")),
    {"attention_window": 1, "hard_attention": "straight-through"},
    {"attention_normalization": "sparsemax", "input_feeding": "context"},
    {"attention_normalization": "top-k", "attention_top_k": 2, "attention_temperature": 0.5},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_steps_equal_the_forward_pass_and_sequences_equal_themselves_alone(changes: dict[str, object]) -> None:
    model = build_seq2seq(**changes)
    logprobs = check_steps_equal_the_forward_pass(model, SOURCE, TARGET, 1e-4)
    order = (2, 0, 1)
    permuted_source = Tokens.from_rows([SOURCE.row(row) for row in order])
    permuted_target = Tokens.from_rows([TARGET.row(row) for row in order])
    permuted = model.target_logprobs(permuted_source, permuted_target)
    for row, row_logprobs in zip(order, permuted, strict=True):
        np.testing.assert_allclose(row_logprobs, logprobs[row], atol=1e-4)


def encode_plainly(model: Seq2Seq, hidden: list[Tensor]) -> tuple[Tensor, list[list[Tensor]]]:
    """Hidden states of the source [K, D] and each layer's last states, token by token."""
    last_states = []
    for cells in model.encoder.layers:
        outputs_by_direction = []
        states = []
        for cell, step in zip(cells, (1, -1), strict=False):
            state: State = (hidden[0].new_zeros(1, HIDDEN_SIZE),) * cell.num_states
            outputs = []
            for inputs in hidden[::step]:
                state = plain_step(cell, inputs @ cell.input_weight.T, state)
                outputs.append(state[0])
            outputs_by_direction.append(outputs[::step])
            states.append(state)
        hidden = [torch.cat(directions, dim=1) for directions in zip(*outputs_by_direction, strict=True)]
        last_states.append([torch.cat(directions, dim=1) for directions in zip(*states, strict=True)])
    return torch.cat(hidden), last_states


def plain_loss(model: Seq2Seq, source_ids: list[int], target_ids: list[int]) -> Tensor:
    """The loss of one pair, token by token, as the papers write it."""
    config = model.config
    decoder = model.decoder
    embeddings = model.token_embedding.weight * EMBEDDING_SIZE**0.5
    source, last_states = encode_plainly(model, [embeddings[token][None] for token in source_ids])
    layers: list[State] = []
    for bridges, (output, *cell_state) in zip(decoder.bridge, last_states, strict=True):
        layers.append((torch.tanh(bridges[0](output)), *(bridges[1](tensor) for tensor in cell_state)))
    source_state = layers[-1][0]
    readout = embeddings.new_zeros(1, EMBEDDING_SIZE)

    def attend_plainly(query: Tensor, position: int) -> Tensor:
        score = decoder.score
        if isinstance(score, Additive):
            scores = score.v(torch.tanh(score.query(query) + score.key(source)))[:, 0]
        else:
            scores = score.prepare(source) @ query[0]
        allowed = torch.ones(len(source), dtype=torch.bool)
        if config.attention_window:
            centre = min(position, len(source) - 1)
            allowed = (torch.arange(len(source)) - centre).abs() <= config.attention_window
        normalize = build_normalizer(config.attention_normalization, config.attention_top_k)
        return normalize(scores[None] / config.attention_temperature, allowed[None]).to(source.dtype) @ source

    loss = embeddings.new_zeros(())
    first_cell = decoder.cells[0]
    steps = zip([config.bos_id, *target_ids], [*target_ids, config.eos_id], strict=True)
    for position, (input_id, label) in enumerate(steps):
        inputs = embeddings[input_id][None]
        context = source_state if config.source_context == "every" else None
        if config.input_feeding == "context":
            context = attend_plainly(layers[-1][0], position)
            sums = inputs @ first_cell.input_weight.T + context @ first_cell.feed_weight.T
        elif config.input_feeding == "output":
            sums = inputs @ first_cell.input_weight.T + readout @ first_cell.feed_weight.T
        else:
            sums = (inputs if context is None else torch.cat([inputs, context], dim=1)) @ first_cell.input_weight.T
        for layer, cell in enumerate(decoder.cells):
            if layer:
                sums = layers[layer - 1][0] @ cell.input_weight.T
            layers[layer] = plain_step(cell, sums, layers[layer])
        if config.attention != "none" and context is None:
            context = attend_plainly(layers[-1][0], position)
        readout_sums = decoder.readout(layers[-1][0])
        if context is not None:
            readout_sums = readout_sums + decoder.context_readout(context)
        readout = torch.tanh(readout_sums)
        loss = loss - torch.log_softmax(readout @ model.output_weight.T, dim=1)[0, label]
    return loss


SOFT_VARIANTS = [
    {key: value for key, value in changes.items() if key != "hard_attention"}
    for changes in VARIANTS
    if not changes.keys() & {"bridge", "share_embeddings", "tie_embeddings"}
]


@pytest.mark.parametrize("changes", SOFT_VARIANTS, ids=str)
def test_loss_and_gradients_are_those_of_plain_loops(changes: dict[str, object]) -> None:
    model = build_seq2seq(**changes, dropout=0.0).double()
    gradients = []
    for noise in (None, Noise(1, 1)):  # the second rounds the token count up
        model.zero_grad()
        loss, _ = model.loss(SOURCE, TARGET, noise=noise)
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    model.zero_grad()
    pairs = zip(SOURCE, TARGET, strict=True)
    expected = sum(plain_loss(model, source.tolist(), target.tolist()) for source, target in pairs)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    plain_gradients = [parameter.grad for parameter in model.parameters()]
    for loop_gradients in gradients:  # the vocabulary loss sums in float32
        torch.testing.assert_close(loop_gradients, plain_gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"input_feeding": "context", "num_layers": 2, "tie_embeddings": False, "output_bias": True},
        {"cell": "gru", "attention": "bilinear", "input_feeding": "output"},
        {"cell": "gru", "attention": "none", "source_context": "every"},
        {"attention": "concat", "hard_attention": "straight-through"},
        {"input_feeding": "context", "hard_attention": "straight-through"},
        {"attention": "bilinear", "hard_attention": "reinforce"},
        {"input_feeding": "context", "hard_attention": "reinforce"},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_weight_has_a_gradient_and_noise_is_a_function(changes: dict[str, object], dtype: torch.dtype) -> None:
    model = build_seq2seq(**changes).to(dtype)
    repeats = []
    for _ in range(2):
        model.zero_grad()
        smoothed, plain = model.loss(SOURCE, TARGET, smoothing=0.1, noise=Noise(1, 1))
        smoothed.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
            assert torch.isfinite(parameter.grad).all(), name
        repeats.append([smoothed.detach(), plain, *(parameter.grad.clone() for parameter in model.parameters())])
        torch.manual_seed(7)  # nothing depends on torch's global generator
    assert all(torch.equal(first, second) for first, second in zip(*repeats, strict=True))
    _, at_another_step = model.loss(SOURCE, TARGET, smoothing=0.1, noise=Noise(1, 2))
    assert at_another_step.item() != plain.item()
    _, without_noise = model.loss(SOURCE, TARGET)
    expected = -sum(float(row.sum()) for row in model.target_logprobs(SOURCE, TARGET))
    assert without_noise.item() == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("feeding", ["none", "context", "output"])
@pytest.mark.parametrize("mode", ["none", "straight-through"])
def test_weights_sum_to_one_and_hard_attention_is_one_hot(feeding: str, mode: str) -> None:
    model = build_seq2seq(input_feeding=feeding, hard_attention=mode)
    with trace(full_precision=True) as captured:
        traced = model.target_logprobs(SOURCE, TARGET)
    untraced = model.target_logprobs(SOURCE, TARGET)
    np.testing.assert_array_equal(np.concatenate(traced), np.concatenate(untraced))
    assert [*captured] == ["decoder.attention"]
    weights = captured["decoder.attention"].weights
    assert weights.shape == (3, 1, 5, 5)  # sentences, one head, longest target with bos, longest source
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert (weights[1, :, :, 2:] == 0).all()  # no attention past the end of the second source
    assert bool(((weights == 0) | (weights == 1)).all()) == (mode != "none")
    state = model.start(SOURCE, max_length=4)
    model.keep_attention(state)
    for position, tokens in enumerate(([3, 3, 3], [12, 14, 18])):
        _, state = model.step(np.array(tokens), state, 1)
        step_weights = model.last_attention(state)
        np.testing.assert_allclose(step_weights, weights[:, 0, position], atol=1e-5)


@pytest.mark.parametrize("feeding", ["none", "context", "output"])
def test_rows_can_be_selected_dropped_and_repeated_at_any_time(feeding: str) -> None:
    model = build_seq2seq(input_feeding=feeding, attention="bilinear", num_layers=2)
    state = model.start(SOURCE, max_length=8).select(np.array([0, 0, 1, 1, 2, 2]))
    model.keep_attention(state)
    _, state = model.step(np.full(6, 3), state, 2)
    assert model.last_attention(state).shape == (6, 5)
    state = state.select(np.array([1, 0, 5]))  # one sentence dropped, unequal numbers of rows
    candidates, _ = model.step(np.array([7, 8, 9]), state, 0)
    for row, (sentence, token) in enumerate(((0, 7), (0, 8), (2, 9))):
        single = model.start(Tokens.from_rows([SOURCE.row(sentence)]), max_length=8)
        _, single = model.step(np.array([3]), single, 1)
        expected, _ = model.step(np.array([token]), single, 0)
        np.testing.assert_allclose(candidates.logprobs[row], expected.logprobs[0], atol=1e-4)


@pytest.mark.parametrize("attention", ["none", "additive"])
def test_it_can_be_searched(attention: str) -> None:
    model = build_seq2seq(attention=attention).pack()
    for beam in (1, 3):
        beams = search(model, SOURCE, DecodingConfig(beam=beam, nbest=beam), max_lengths=[5, 7, 11])
        for hypotheses in beams:
            assert len(hypotheses) == beam
        for row, (best, *_) in enumerate(beams):
            source = Tokens.from_rows([SOURCE.row(row)])
            (logprobs,) = model.target_logprobs(source, Tokens.from_rows([best.ids]))
            emitted = logprobs if best.finished else logprobs[:-1]  # a text that was cut has no end token
            assert best.logprob == pytest.approx(float(emitted.sum()), abs=1e-3)
    with_coverage = DecodingConfig(beam=3, coverage_penalty=0.2)
    if attention == "none":
        with pytest.raises(UsageError, match="without attention has no coverage: set coverage to 0"):
            search(model, SOURCE, with_coverage, max_lengths=[5, 7, 11])
    else:
        assert len(search(model, SOURCE, with_coverage, max_lengths=[5, 7, 11])) == 3


def test_rewards_have_a_gradient_and_no_value() -> None:
    model = build_seq2seq(attention="bilinear", hard_attention="reinforce", dropout=0.0)
    smoothed, plain = model.loss(SOURCE, TARGET, noise=Noise(1, 1))
    _, without_noise = model.loss(SOURCE, TARGET)
    assert smoothed.item() == pytest.approx(plain.item())
    assert plain.item() != without_noise.item()  # keys are sampled in training, the argmax is taken in inference
    source = Tokens.from_rows([SOURCE.row(0)])
    target = Tokens.from_rows([TARGET.row(0)])
    assert torch.isfinite(model.loss(source, target, noise=Noise(1, 1))[0])  # a baseline of no other sequences


def test_gates_count_as_separate_matrices() -> None:
    shapes = build_seq2seq(input_feeding="context", cell="gru").hidden_matrices()
    assert shapes["decoder.layers.0.gru_hidden.weight"] == [(HIDDEN_SIZE, HIDDEN_SIZE)] * 3
    assert shapes["decoder.layers.0.gru_feed.weight"] == [(HIDDEN_SIZE, 2 * HIDDEN_SIZE)] * 3
    assert shapes["encoder.layers.0.1.gru_input.weight"] == [(HIDDEN_SIZE, EMBEDDING_SIZE)] * 3
    lstm_shapes = build_seq2seq().hidden_matrices()
    assert lstm_shapes["decoder.layers.0.lstm_hidden.weight"] == [(HIDDEN_SIZE, HIDDEN_SIZE)] * 4
    assert "token_embedding.weight" not in shapes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "dot", "directions": "both"}, "set directions to one, or attention to bilinear"),
        ({"bridge": "copy"}, "set bridge to dense"),
        ({"attention": "none", "input_feeding": "context"}, r"input_feeding \(context\) needs attention"),
        ({"attention": "none", "hard_attention": "reinforce"}, r"hard_attention \(reinforce\) needs attention"),
        ({"source_context": "every"}, "without attention"),
        ({"source_vocab_size": 3}, "set share_embeddings to false"),
        ({"cell": "gro"}, "did you mean gru"),
    ],
)
def test_contradictory_settings_are_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Seq2SeqConfig().override(changes)
    assert set(SEQ2SEQ_PRESETS) >= {"tiny", "small"}


@pytest.mark.parametrize("changes", [{"input_feeding": "context"}, {"cell": "gru", "attention": "bilinear"}], ids=str)
def test_it_learns_to_reverse_digits(changes: dict[str, object]) -> None:
    model = build_seq2seq(**changes, embedding_size=16, hidden_size=32, dropout=0.0)
    initialize_weights(model, seed=1)
    rng = np.random.default_rng(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def random_pairs(count: int) -> tuple[Tokens, Tokens]:
        rows = [rng.integers(5, 15, rng.integers(2, 6)).tolist() for _ in range(count)]
        return Tokens.from_rows([[*row, 1] for row in rows]), Tokens.from_rows([row[::-1] for row in rows])

    for step in range(250):
        source, target = random_pairs(32)
        optimizer.zero_grad()
        (model.loss(source, target, noise=Noise(1, step))[0] / 32).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    source, target = random_pairs(20)
    beams = search(model, source, DecodingConfig(beam=1), max_lengths=[7] * 20)
    num_correct = sum(hypotheses[0].ids == row.tolist() for hypotheses, row in zip(beams, target, strict=True))
    assert num_correct >= 16
