"""What is put into a record of an answer: how attention is kept, how many candidates, the numbers inside a head."""

from __future__ import annotations

from dataclasses import dataclass

from regard.config.knob import Config, knob

MOST_KEPT = 64 * 2**20  # bytes of weights in half precision beyond which queries and keys are kept instead


@dataclass(frozen=True, kw_only=True)
class SeeingConfig(Config):
    """What is put into a record."""

    keep: str = knob(
        "auto",
        "weights, or queries and keys that weights are computed from when looked at; auto: by size",
        choices=("auto", "weights", "queries"),
    )
    inside: str = knob("", "heads whose numbers are kept for the Maths view: encoder.3.self:2, or best")
    top: int = knob(10, "likeliest tokens kept of each step", low=0, high=1000)
    no_beams: bool = knob(False, "leave out the tree of beams, for which a text is searched once more")

    def kept(self, size: int) -> str:
        """Return what a trace keeps of so many weights.

        >>> SeeingConfig().kept(1000), SeeingConfig().kept(10**9), SeeingConfig(keep="weights").kept(10**9)
        ('weights', 'queries', 'weights')
        """
        if self.keep != "auto":
            return self.keep
        return "queries" if 2 * size > MOST_KEPT else "weights"
