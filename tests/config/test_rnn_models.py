"""Settings of recurrent models: directions, hard attention, architectures by name and the bare option."""

from __future__ import annotations

import click
import pytest

from regard.cli import options
from regard.config.architecture import parse_architecture
from regard.config.rnn_models import ATTENTION_SCORES, Seq2SeqConfig
from regard.config.task_runs import TranslateRun
from regard.errors import ConfigError


def test_dot_attention_has_a_forward_encoder_by_default() -> None:
    assert Seq2SeqConfig(attention="dot").num_directions == 1
    assert Seq2SeqConfig().num_directions == 2
    assert Seq2SeqConfig(directions="one").num_directions == 1
    with pytest.raises(ConfigError, match="dot attention needs states of one size"):
        Seq2SeqConfig(attention="dot", directions="both")


def test_hard_attention_has_any_score_and_a_gradient_estimator() -> None:
    hard = Seq2SeqConfig(attention="bilinear", hard_attention="straight-through")
    assert "hard (straight-through) bilinear attention" in hard.summary()
    assert "soft additive attention" in Seq2SeqConfig().summary()
    with pytest.raises(ConfigError, match="hard_attention must be one of none, straight-through, reinforce"):
        Seq2SeqConfig(hard_attention="soft")


@pytest.mark.parametrize("attention", ATTENTION_SCORES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_every_named_architecture_has_consistent_settings(cell: str, attention: str) -> None:
    config = TranslateRun().override(parse_architecture(f"{cell}:{attention}"))
    assert (config.seq2seq.cell, config.seq2seq.attention) == (cell, attention)


def parse_options(arguments: list[str]) -> dict[str, object]:
    """Settings that a command with the options of a seq2seq model parses from its arguments."""
    settings: dict[str, object] = {}

    @options.verb("Try.", options.knob_options(Seq2SeqConfig, section="Main"))
    def trial(context: click.Context, as_json: bool) -> None:
        settings.update(options.changed_settings(context))

    trial.main(arguments, standalone_mode=False)
    return settings


def test_the_option_of_input_feeding_needs_no_value() -> None:
    assert parse_options(["--input-feeding"]) == {"input_feeding": "output"}
    assert parse_options(["--input-feeding", "--cell", "gru"]) == {"input_feeding": "output", "cell": "gru"}
    assert parse_options(["--input-feeding", "context"]) == {"input_feeding": "context"}
    assert parse_options(["--cell", "gru"]) == {"cell": "gru"}
