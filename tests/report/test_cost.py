"""Cost by length: counts against explicit sums, against torch's own counter and real states; the report."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard import cli
from regard.config.models import StackConfig, TransformerConfig
from regard.config.rnn_models import Seq2SeqConfig
from regard.errors import UsageError
from regard.models import build_model
from regard.packed_tokens import Tokens
from regard.report.cost import CostPoint, CostReport, CostSettings, measure_cost
from regard.report.cost_counts import TranslatorConfig, state_numbers, update_operations

SOURCE = 7
TARGET = 5
VOCAB_SIZE = 31


def transformer(**changes: object) -> TransformerConfig:
    stack = StackConfig(num_layers=2, num_heads=3, feed_forward_size=13, **changes)  # type: ignore[arg-type]
    return TransformerConfig(
        source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, hidden_size=12, encoder=stack, decoder=stack
    )


def seq2seq(**changes: object) -> Seq2SeqConfig:
    sizes = {"source_vocab_size": VOCAB_SIZE, "target_vocab_size": VOCAB_SIZE, "embedding_size": 11, "hidden_size": 17}
    return Seq2SeqConfig(**{**sizes, "num_layers": 2, "directions": "one", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{}, {"head_size": 6}])
def test_operations_of_a_transformer_are_those_that_torch_counts(changes: dict[str, int]) -> None:
    """torch counts all matrix products but those inside its fused attention: two for each pair of query and key."""
    config = transformer(**changes)
    model = build_model(config).eval()
    source = Tokens.from_rows([np.arange(4, 4 + SOURCE)])
    decoder_inputs = Tokens.from_rows([np.arange(4, 4 + TARGET)])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        hidden = model(source, decoder_inputs)
        torch.nn.functional.linear(hidden, model.output_weight)
    pairs = SOURCE**2 + TARGET**2 + SOURCE * TARGET
    attention = 2 * 2 * 3 * 2 * changes.get("head_size", 4) * pairs  # layers, heads, d_k + d_v
    assert update_operations(config, SOURCE, TARGET) == 3 * (counter.get_total_flops() + attention)


def test_operations_of_an_lstm_are_counted_by_hand() -> None:
    encoder = SOURCE * 4 * 17 * ((11 + 17) + (17 + 17))
    decoder = TARGET * (4 * 17 * ((11 + 17) + (17 + 17)) + 17 * 11 + 11 * VOCAB_SIZE)
    bridge = 2 * 2 * 17 * 17
    assert update_operations(seq2seq(attention="none"), SOURCE, TARGET) == 6 * (encoder + decoder + bridge)
    keys_and_values = SOURCE * (17 * 17 + 17 * 11)
    attention = TARGET * 17 * 17 + SOURCE * TARGET * (17 + 11)
    expected = 6 * (encoder + decoder + bridge + keys_and_values + attention)
    assert update_operations(seq2seq(attention="additive"), SOURCE, TARGET) == expected


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "none"},
        {"attention": "none", "source_context": "every"},
        {"attention": "additive", "input_feeding": "context"},
        {"attention": "dot", "input_feeding": "output"},
        {"attention": "bilinear"},
    ],
)
def test_operations_count_every_linear_weight(cell: str, changes: dict[str, str]) -> None:
    """One source and one target token: each weight of a linear layer multiplies once, but for attention itself."""
    config = seq2seq(cell=cell, **changes)
    model = build_model(config)
    weights = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.endswith(("score.v", "readout_v"))
    )
    fed = 4 if cell == "lstm" else 3
    pair = 0
    if changes["attention"] != "none":
        pair = 17 + 11 + (fed * 17 if changes.get("input_feeding") == "context" else 0)
    assert update_operations(config, 1, 1) == 6 * (weights + 11 * VOCAB_SIZE + pair)


@pytest.mark.parametrize(
    "config",
    [
        transformer(),
        transformer(head_size=5, value_size=2),
        seq2seq(attention="none"),
        seq2seq(attention="none", cell="gru", source_context="every"),
        seq2seq(attention="additive", input_feeding="context"),
        seq2seq(attention="dot", input_feeding="output"),
    ],
)
def test_state_numbers_are_those_of_a_real_state(config: TranslatorConfig) -> None:
    model = build_model(config).eval()
    source = Tokens.from_rows([np.arange(4, 4 + SOURCE)])
    state = model.start(source, 20)
    tokens = np.array([model.bos_id], dtype=np.int32)
    for _ in range(TARGET):
        _, state = model.step(tokens, state, 1)
    if isinstance(config, TransformerConfig):
        cache = state.cache
        count = cache.buffer[: cache.length].numel()
        count += sum(layer.key.numel() + layer.value.numel() for layer in state.sources)
    else:
        count = sum(tensor.numel() for layer in state.decoder.layers for tensor in layer)
        count += 0 if state.decoder.feed is None else state.decoder.feed.numel()
        count += 0 if state.source is None else state.source.key.numel() + state.source.value.numel()
    assert state_numbers(config, SOURCE, TARGET) == count


def test_a_recurrent_state_is_constant_and_a_cache_linear() -> None:
    lengths = [16, 32, 64]
    rnn = [state_numbers(seq2seq(attention="none"), length, length) for length in lengths]
    cache = [state_numbers(transformer(), length, length) for length in lengths]
    assert len(set(rnn)) == 1
    assert cache == [cache[0], 2 * cache[0], 4 * cache[0]]


@pytest.fixture(scope="module")
def report() -> CostReport:
    settings = CostSettings(
        ("rnn", "gru:additive", "transformer"),
        lengths=(3, 5),
        threads=(1,),
        hidden_size=8,
        num_layers=1,
        vocab_size=23,
        tokens=11,
        rounds=2,
    )
    return measure_cost(settings)


def test_every_setup_is_measured_in_every_round(report: CostReport) -> None:
    setups = [(point.architecture, point.length, point.threads) for point in report.points]
    assert setups == [(name, length, 1) for name in ("rnn", "gru:additive", "transformer") for length in (3, 5)]
    assert all(len(point.seconds) == 2 and min(point.seconds) > 0 for point in report.points)
    assert [point.rows for point in report.points] == [3, 2] * 3
    config = report.settings.configs()["transformer"]
    assert report.points[-1].operations == 2 * update_operations(config, 5, 5)
    header, *rows = report.table()
    assert len(rows) == 6
    assert all(len(row) == len(header) for row in rows)


def test_the_report_shows_medians_ranges_and_charts(report: CostReport) -> None:
    point = CostPoint("rnn", 16, threads=2, rows=1, seconds=(0.3, 0.1, 0.2), operations=10**9, state=7)
    assert point.to_dict()["seconds"] == 0.2
    assert point.to_dict()["seconds_range"] == [0.1, 0.3]
    assert point.to_dict()["operations_per_second"] == 5e9
    assert point.cells() == ["rnn", "16", "2", "200", "100–300", "1", "5", "7"]
    assert list(report.charts()) == [
        "Time of an update",
        "Operations of an update",
        "State while a sentence is generated",
    ]
    assert report.page().count("<svg") == 3
    assert "2 interleaved rounds" in "\n".join(report.summary())


def test_wrong_requests_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--arch", "transfomer"], "did you mean transformer"),
        (["--lengths", "16,x"], "--lengths takes numbers separated by commas"),
        (["--lengths", "16,0"], "lengths (16, 0) must be at least 1"),
        (["--lengths", "16,16"], "named twice"),
        (["--threads", "0"], "threads (0) must be at least 1"),
        (["--out", "cost.pdf"], ".html, .json, .tsv"),
    ):
        assert cli.run(["cost", *arguments]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UsageError, match="must not be empty"):
        CostSettings(architectures=())


def test_the_command_prints_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--lengths 3 --threads 1 --hidden-size 8 --num-layers 1 --vocab-size 23 --batch-tokens 5 --rounds 1"
    assert cli.run(["cost", *sizes.split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [point["architecture"] for point in printed["points"]] == ["rnn", "transformer"]
    assert printed["points"][0]["state"] == 16  # an LSTM's output and memory cell
    assert cli.run(["flops"]) == 2
    assert "did you mean cost" in capsys.readouterr().err
