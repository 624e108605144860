"""Properties of positional encodings that need no training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from recipes.claims.measure import Measurement, Subject
from regard.attention.positions import sinusoids
from regard.errors import ConfigError

ENCODINGS = ("sinusoidal", "random")


def shift_error(subject: Subject, *, positions: int, width: int, shifts: Sequence[int]) -> Measurement:
    """Largest error of the linear map that best sends the code of each position to that of a shifted one.

    The setting `encoding` is sinusoidal, or random: codes of normal random numbers, with which no such map exists.
    """
    encoding = subject.settings.get("encoding")
    if encoding not in ENCODINGS:
        raise ConfigError(f"shift_error: encoding must be one of {', '.join(ENCODINGS)}, not {encoding!r}")
    count = positions + max(shifts)
    codes = sinusoids(torch.arange(count), width).double().numpy()
    if encoding == "random":
        codes = np.random.default_rng(subject.seed).normal(size=(count, width))
    curve = []
    for shift in shifts:
        source = codes[:positions]
        target = codes[shift : shift + positions]
        linear_map, *_ = np.linalg.lstsq(source, target, rcond=None)
        curve.append((float(shift), float(np.abs(source @ linear_map - target).max())))
    return Measurement({"value": max(error for _, error in curve)}, curve=tuple(curve))
