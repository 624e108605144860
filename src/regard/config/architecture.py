"""Entries of `--arch` of a comparison as settings of a run."""

from __future__ import annotations

from itertools import product
from typing import Any

from regard.config.rnn_models import ATTENTION_SCORES, CELLS
from regard.errors import UsageError, nearest

HARD = "hard"  # hard attention with the additive score
_ATTENTIONS = (*ATTENTION_SCORES, HARD)


def parse_architecture(text: str) -> dict[str, Any]:
    """Parse one entry of `--arch`, transformer or CELL:ATTENTION, into settings of a run.

    Without attention, an LSTM decoder gets the source state at the start (Sutskever et al. 2014), a GRU decoder at
    every step (Cho et al. 2014). Additive attention feeds its context to the cell (Bahdanau et al. 2015); the other
    scores attend after the cell (Luong et al. 2015).

    >>> parse_architecture("gru:none")["seq2seq.source_context"], parse_architecture("transformer")
    ('every', {'architecture': 'transformer'})
    """
    if text == "transformer":
        return {"architecture": "transformer"}
    cell, _, attention = text.partition(":")
    if cell not in CELLS or attention not in _ATTENTIONS:
        allowed = ["transformer", *(f"{cell}:{attention}" for cell, attention in product(CELLS, _ATTENTIONS))]
        raise UsageError(
            f"unknown architecture {text!r}{nearest(text, allowed)}: must be transformer or CELL:ATTENTION, where the "
            f"cell is one of {', '.join(CELLS)} and the attention one of {', '.join(_ATTENTIONS)}"
        )
    if attention == HARD:
        return {
            "architecture": "rnn",
            "seq2seq.cell": cell,
            "seq2seq.attention": "additive",
            "seq2seq.hard_attention": "straight-through",
        }
    settings: dict[str, Any] = {"architecture": "rnn", "seq2seq.cell": cell, "seq2seq.attention": attention}
    if attention == "none":
        settings["seq2seq.source_context"] = "every" if cell == "gru" else "start"
    else:
        settings["seq2seq.input_feeding"] = "context" if attention == "additive" else "none"
    return settings
