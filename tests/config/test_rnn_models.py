"""What the settings of a recurrent model mean."""

from __future__ import annotations

import click
import pytest

from regard.cli import options
from regard.config.defaults import parse_architecture
from regard.config.rnn_models import SCORES, Seq2SeqConfig
from regard.config.runs import RunConfig
from regard.errors import ConfigError


def test_dot_reads_forwards_unless_told_otherwise() -> None:
    assert Seq2SeqConfig(attention="dot").num_directions == 1
    assert Seq2SeqConfig().num_directions == 2
    assert Seq2SeqConfig(directions="one").num_directions == 1
    with pytest.raises(ConfigError, match="dot compares states of one width"):
        Seq2SeqConfig(attention="dot", directions="both")


def test_hard_attention_compares_as_additive_does_and_chooses_one_place() -> None:
    hard = Seq2SeqConfig(attention="hard")
    assert (hard.score, hard.attention_mode) == ("additive", "straight_through")
    assert Seq2SeqConfig(attention="hard", hard_attention="reinforce").attention_mode == "reinforce"
    assert Seq2SeqConfig(attention="bilinear", hard_attention="straight_through").score == "bilinear"
    assert Seq2SeqConfig().attention_mode == "soft"
    assert "straight_through additive" in hard.summary()


@pytest.mark.parametrize("attention", SCORES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_every_architecture_has_settings_that_fit(cell: str, attention: str) -> None:
    made = RunConfig().override(parse_architecture(f"{cell}:{attention}"))
    assert (made.seq2seq.cell, made.seq2seq.attention) == (cell, attention)


def flagged(words: list[str]) -> dict[str, object]:
    """Return what a verb with the flags of a recurrent model makes of a command line."""
    made: dict[str, object] = {}

    @options.verb("Try.", options.knob_options(Seq2SeqConfig, section="Main"))
    def trial(context: click.Context, as_json: bool) -> None:
        made.update(options.changed_settings(context))

    trial.main(words, standalone_mode=False)
    return made


def test_the_flag_of_input_feeding_may_stand_alone() -> None:
    assert flagged(["--input-feeding"]) == {"input_feeding": "output"}
    assert flagged(["--input-feeding", "--cell", "gru"]) == {"input_feeding": "output", "cell": "gru"}
    assert flagged(["--input-feeding", "context"]) == {"input_feeding": "context"}
    assert flagged(["--cell", "gru"]) == {"cell": "gru"}
