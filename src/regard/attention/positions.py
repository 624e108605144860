"""Where each thing is. A scheme overrides exactly one of three verbs; the others do nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, UsageError, nearest


class Positions(nn.Module):
    """No positions at all: order is invisible."""

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return the states [N, D] with their places [N] added."""
        return hidden

    def rotate(self, heads: Tensor, at: Tensor) -> Tensor:
        """Return queries or keys [B, H, T, d] turned by their places [B|1, T]."""
        return heads

    def bias(self, query_at: Tensor, key_at: Tensor) -> Tensor | None:
        """Return what places add to the scores, [B|1, H|1, Q, K], or None."""
        return None


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return sines then cosines of the places at geometric wavelengths (Vaswani et al. 2017, section 3.5).

    The sines fill the first half and the cosines the second; an odd width has one sine more.

    >>> sinusoids(torch.tensor([0]), 4).tolist()
    [[0.0, 0.0, 1.0, 1.0]]
    """
    halves = (width + 1) // 2
    rates = torch.exp(torch.arange(halves, dtype=torch.float64) * (-2 * math.log(10_000.0) / width)).to(
        positions.device
    )
    angles = positions.to(torch.float64)[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()[..., : width // 2]], dim=-1).float()


class Sinusoidal(Positions):
    """Adds fixed sines and cosines; a place never seen in training still has its code."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.hidden_size = width
        self.register_buffer("table", sinusoids(torch.arange(places), width), persistent=False)

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        table: Tensor = self.table  # type: ignore[assignment]
        if positions.numel() and int(positions.max()) >= len(table):
            return hidden + sinusoids(positions, self.hidden_size).to(hidden)
        return hidden + table[positions].to(hidden.dtype)


class Learned(Positions):
    """Adds a learned vector for each place (BERT, GPT)."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(places, width).normal_(0, width**-0.5))

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        if positions.numel() and int(positions.max()) >= len(self.weight):
            raise UsageError(
                f"a row has {int(positions.max()) + 1} places but the model learned {len(self.weight)}: split it"
            )
        return hidden + nn.functional.embedding(positions, self.weight)


class Rotary(Positions):
    """Turns pairs of query and key entries by their place, so that scores depend on distance (Su et al. 2021)."""

    def __init__(self, base: float = 10_000.0) -> None:
        """Wavelengths grow from 2π to 2π · base."""
        super().__init__()
        self.theta = base

    def rotate(self, heads: Tensor, at: Tensor) -> Tensor:
        half = heads.shape[-1] // 2
        rates = 1 / self.theta ** (torch.arange(half, device=at.device, dtype=torch.float32) / half)
        angles = (at.float()[..., None] * rates).unsqueeze(1)  # [B|1, 1, T, d/2]
        cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        left, right = heads[..., :half], heads[..., half:]
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)


def build_positions(kind: str, max_positions: int, hidden_size: int) -> Positions:
    """Return the scheme of this name."""
    made = {
        "sinusoidal": lambda: Sinusoidal(max_positions, hidden_size),
        "learned": lambda: Learned(max_positions, hidden_size),
        "rotary": Rotary,
        "none": Positions,
    }
    if kind not in made:
        raise ConfigError(f"positions must be one of {', '.join(made)}, not {kind!r}{nearest(kind, made)}")
    return made[kind]()
