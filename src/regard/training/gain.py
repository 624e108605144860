"""What a model gives over a baseline, told and kept as measures."""

from __future__ import annotations

from regard.tasks.baseline import Gain
from regard.training.job import Say


def told_gain(
    gain: Gain, baseline: float, name: str, what: str, say: Say, *, who: str = "attention"
) -> dict[str, float]:
    """Say what `who` gives over a baseline on the data of this name; return it as measures."""
    say(f"{name}: {what} {baseline:.2f}; {gain.verdict(who)}")
    return {f"{name}_baseline": baseline, f"{name}_gain": gain.points, f"{name}_gain_interval": gain.interval}
