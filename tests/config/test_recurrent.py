"""What the settings of a recurrent model mean."""

from __future__ import annotations

import click
import pytest

from regard.cli import options
from regard.config.architecture import architecture
from regard.config.model import SCORES, RecurrentConfig
from regard.config.run import RunConfig
from regard.errors import ConfigError


def test_dot_reads_forwards_unless_told_otherwise() -> None:
    assert RecurrentConfig(attention="dot").sides == 1
    assert RecurrentConfig().sides == 2
    assert RecurrentConfig(directions="one").sides == 1
    with pytest.raises(ConfigError, match="dot compares states of one width"):
        RecurrentConfig(attention="dot", directions="both")


def test_hard_attention_compares_as_additive_does_and_chooses_one_place() -> None:
    hard = RecurrentConfig(attention="hard")
    assert (hard.score, hard.look) == ("additive", "straight_through")
    assert RecurrentConfig(attention="hard", choice="reinforce").look == "reinforce"
    assert RecurrentConfig(attention="bilinear", choice="straight_through").score == "bilinear"
    assert RecurrentConfig().look == "soft"
    assert "straight_through additive" in hard.summary()


@pytest.mark.parametrize("attention", SCORES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_every_architecture_has_settings_that_fit(cell: str, attention: str) -> None:
    made = RunConfig().override(architecture(f"{cell}:{attention}"))
    assert (made.recurrent.cell, made.recurrent.attention) == (cell, attention)


def flagged(words: list[str]) -> dict[str, object]:
    """Return what a verb with the flags of a recurrent model makes of a command line."""
    made: dict[str, object] = {}

    @options.verb("Try.", options.knob_options(RecurrentConfig, section="Main"))
    def trial(context: click.Context, as_json: bool) -> None:
        made.update(options.changes(context))

    trial.main(words, standalone_mode=False)
    return made


def test_the_flag_of_input_feeding_may_stand_alone() -> None:
    assert flagged(["--input-feeding"]) == {"input_feeding": "output"}
    assert flagged(["--input-feeding", "--cell", "gru"]) == {"input_feeding": "output", "cell": "gru"}
    assert flagged(["--input-feeding", "context"]) == {"input_feeding": "context"}
    assert flagged(["--cell", "gru"]) == {"cell": "gru"}
