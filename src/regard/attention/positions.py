"""Positional schemes: a scheme overrides one of `embed`, `rotate` and `bias`; the others do nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, UsageError, nearest


class Positions(nn.Module):
    """No positional information: attention is invariant to order. A subclass overrides what its scheme changes.

    >>> class Counted(Positions):
    ...     def embed(self, hidden, positions):
    ...         return hidden + positions[:, None]
    >>> Counted().embed(torch.zeros(2, 1), torch.tensor([0, 1])).tolist()
    [[0.0], [1.0]]
    """

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Add the embeddings of positions [N] to hidden states [N, D]."""
        return hidden

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys [B, H, T, d] by their positions [B|1, T]."""
        return heads

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Bias added to the attention scores, [B|1, H|1, Q, K]; None without one."""
        return None


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sines, then cosines of the positions at geometric wavelengths (Vaswani et al. 2017, section 3.5).

    The sines fill the first half and the cosines the second; an odd width has one more sine.

    >>> sinusoids(torch.tensor([0]), 4).tolist()
    [[0.0, 0.0, 1.0, 1.0]]
    """
    num_sines = (width + 1) // 2
    exponents = torch.arange(num_sines, dtype=torch.float64) * (-2 * math.log(10_000.0) / width)
    frequencies = torch.exp(exponents).to(positions.device)
    angles = positions.to(torch.float64)[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()[..., : width // 2]], dim=-1).float()


class Sinusoidal(Positions):
    """Adds fixed sines and cosines; defined for positions beyond those of training."""

    def __init__(self, max_positions: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.register_buffer("table", sinusoids(torch.arange(max_positions), hidden_size), persistent=False)

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        table: Tensor = self.table  # type: ignore[assignment]
        if positions.numel() and int(positions.max()) >= len(table):
            return hidden + sinusoids(positions, self.hidden_size).to(hidden)
        return hidden + table[positions].to(hidden.dtype)


class Learned(Positions):
    """Adds a learned embedding of each position (BERT, GPT)."""

    def __init__(self, max_positions: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, hidden_size).normal_(0, hidden_size**-0.5))

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        if positions.numel() and int(positions.max()) >= len(self.weight):
            raise UsageError(
                f"a sequence has {int(positions.max()) + 1} positions but the model has embeddings of "
                f"{len(self.weight)}: split it"
            )
        return hidden + nn.functional.embedding(positions, self.weight)


class Rotary(Positions):
    """Rotates pairs of query and key dimensions by their position: scores depend on distance (Su et al. 2021)."""

    def __init__(self, theta: float = 10_000.0) -> None:
        """Wavelengths grow from 2π to 2π · theta."""
        super().__init__()
        self.theta = theta

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        half = heads.shape[-1] // 2
        frequencies = 1 / self.theta ** (torch.arange(half, device=positions.device, dtype=torch.float32) / half)
        angles = (positions.float()[..., None] * frequencies).unsqueeze(1)  # [B|1, 1, T, d/2]
        cosine = angles.cos().to(heads.dtype)
        sine = angles.sin().to(heads.dtype)
        left = heads[..., :half]
        right = heads[..., half:]
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)


def build_positions(kind: str, max_positions: int, hidden_size: int) -> Positions:
    """Build the positional scheme of this name: `sinusoidal`, `learned`, `rotary` or `none`.

    >>> build_positions("learned", 16, 8).embed(torch.zeros(3, 8), torch.arange(3)).shape
    torch.Size([3, 8])
    """
    builders: dict[str, Callable[[], Positions]] = {
        "sinusoidal": lambda: Sinusoidal(max_positions, hidden_size),
        "learned": lambda: Learned(max_positions, hidden_size),
        "rotary": Rotary,
        "none": Positions,
    }
    if kind not in builders:
        raise ConfigError(f"positions must be one of {', '.join(builders)}, not {kind!r}{nearest(kind, builders)}")
    return builders[kind]()
