"""Architectures by name: what `transformer` and `gru:additive` mean as settings of a run."""

from __future__ import annotations

from typing import Any

from regard.config.model import CELLS, HARD, SCORES
from regard.errors import UsageError, nearest


def architecture(text: str) -> dict[str, Any]:
    """Return a run's settings for one entry of `--arch`: transformer, or cell:attention.

    Without attention an LSTM is told the source at the start (Sutskever et al. 2014), a GRU at every step (Cho et al.
    2014); additive attention goes into the cell (Bahdanau et al. 2015), the others follow it (Luong et al. 2015).

    >>> architecture("gru:none")["recurrent.context"], architecture("transformer")
    ('every', {'arch': 'transformer'})
    """
    if text == "transformer":
        return {"arch": "transformer"}
    cell, _, attention = text.partition(":")
    if cell not in CELLS or attention not in SCORES:
        every = ["transformer", *(f"{one}:{other}" for one in CELLS for other in SCORES)]
        raise UsageError(
            f"unknown architecture {text!r}{nearest(text, every)}: give transformer or CELL:ATTENTION, with a cell of "
            f"{', '.join(CELLS)} and attention of {', '.join(SCORES)}"
        )
    made: dict[str, Any] = {"arch": "rnn", "recurrent.cell": cell, "recurrent.attention": attention}
    if attention == "none":
        return {**made, "recurrent.context": "every" if cell == "gru" else "start"}
    if attention == HARD:
        return made
    return {**made, "recurrent.input_feeding": "context" if attention == "additive" else "none"}
