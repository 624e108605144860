"""Positional schemes: a scheme overrides one of `embed`, `rotate` and `bias`; the others do nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.alibi import alibi_slopes
from regard.components import POSITIONS
from regard.errors import ConfigError, UsageError, nearest

ROTARY_SCALINGS = ("linear", "ntk")


@dataclass(frozen=True)
class PositionSizes:
    """Sizes of the stack that a positional scheme is built for."""

    max_positions: int
    hidden_size: int
    num_heads: int = 1
    is_causal: bool = False


class Positions(nn.Module):
    """No positional information: attention is invariant to order. A subclass overrides what its scheme changes.

    >>> class Counted(Positions):
    ...     def embed(self, hidden, positions):
    ...         return hidden + positions[:, None]
    >>> Counted().embed(torch.zeros(2, 1), torch.tensor([0, 1])).tolist()
    [[0.0], [1.0]]
    """

    @classmethod
    def build(cls, sizes: PositionSizes) -> Self:
        """Build the scheme for a stack; a subclass whose constructor has arguments overrides it."""
        return cls()

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Add the embeddings of positions [N] to hidden states [N, D]."""
        return hidden

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys [B, H, T, d] by their positions [B|1, T]."""
        return heads

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Bias added to the attention scores, [B|1, H|1, Q, K]; None without one."""
        return None

    def bind(self, query: Tensor, key: Tensor) -> BoundPositions:
        """Bind the scheme to query positions [1, Q] and key positions [1, K]."""
        return BoundPositions(self, query, key)


class BoundPositions:
    """A positional scheme at fixed positions, for one forward pass: its bias is computed once for all layers."""

    def __init__(self, scheme: Positions, query: Tensor, key: Tensor) -> None:
        self.scheme = scheme
        self.query = query  # [1, Q]
        self.key = key  # [1, K]

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys [B, H, T, d] by their positions [B|1, T]."""
        return self.scheme.rotate(heads, positions)

    @cached_property
    def bias(self) -> Tensor | None:
        """Bias of all queries and keys, [1, H|1, Q, K]; None without one."""
        return self.scheme.bias(self.query, self.key)

    def prefix_bias(self, length: int) -> Tensor | None:
        """Bias of the first `length` queries and keys."""
        return None if self.bias is None else self.bias[:, :, :length, :length]

    def selected_bias(self, positions: Tensor) -> Tensor | None:
        """Bias of the queries at positions [B, Q], counted from 0, and all keys, [B, H|1, Q, K]."""
        return None if self.bias is None else self.bias[0][:, positions].transpose(0, 1)


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
        self.register_buffer("table", self._compute(torch.arange(max_positions)), persistent=False)

    @classmethod
    def build(cls, sizes: PositionSizes) -> Self:
        return cls(sizes.max_positions, sizes.hidden_size)

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return hidden + self._codes(positions).to(hidden)

    def _codes(self, positions: Tensor) -> Tensor:
        """Positional encodings of positions [N] → [N, D], from the table, or computed beyond it."""
        table: Tensor = self.table  # type: ignore[assignment]
        return self._compute(positions) if _exceed(positions, len(table)) else table[positions]

    def _compute(self, positions: Tensor) -> Tensor:
        return sinusoids(positions, self.hidden_size)


def _exceed(positions: Tensor, num_positions: int) -> bool:
    """Whether a position is not below `num_positions`; a graph that is being exported has no values to compare."""
    if torch.compiler.is_compiling():
        return False
    return positions.numel() > 0 and int(positions.max()) >= num_positions


class InterleavedSinusoidal(Sinusoidal):
    """Sines and cosines in the order of the paper: at even and odd dimensions in turn."""

    def _compute(self, positions: Tensor) -> Tensor:
        return interleaved_sinusoids(positions, self.hidden_size)


def interleaved_sinusoids(positions: Tensor, width: int) -> Tensor:
    """The values of `sinusoids` with each cosine after its sine.

    >>> interleaved_sinusoids(torch.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    num_sines = (width + 1) // 2
    order = [index // 2 + (index % 2) * num_sines for index in range(width)]
    return sinusoids(positions, width)[..., order]


class Concatenated(Sinusoidal):
    """Concatenates sinusoids to the embeddings, and projects both to the hidden size."""

    def __init__(self, max_positions: int, hidden_size: int) -> None:
        super().__init__(max_positions, hidden_size)
        self.projection = nn.Linear(2 * hidden_size, hidden_size, bias=False)

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        projected: Tensor = self.projection(torch.cat([hidden, self._codes(positions).to(hidden)], dim=-1))
        return projected


class Learned(Positions):
    """Adds a learned embedding of each position (BERT, GPT)."""

    def __init__(self, max_positions: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, hidden_size).normal_(0, hidden_size**-0.5))

    @classmethod
    def build(cls, sizes: PositionSizes) -> Self:
        return cls(sizes.max_positions, sizes.hidden_size)

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        if _exceed(positions, len(self.weight)):
            raise UsageError(
                f"a sequence has {int(positions.max()) + 1} positions but the model has embeddings of "
                f"{len(self.weight)}: split it"
            )
        return hidden + nn.functional.embedding(positions, self.weight)


class Rotary(Positions):
    """Rotates pairs of query and key dimensions by their position: scores depend on distance (Su et al. 2021).

    `rotary_dim`: only the first dimensions of a head are rotated; 0: all. A pair is a dimension of the first half with
    its counterpart in the second, or `interleaved`, two neighbours (GPT-J). `factor` stretches the range of positions
    by interpolation (`linear`, Chen et al. 2023) or by a larger theta (`ntk`).

    >>> Rotary(rotary_dim=2, interleaved=True).rotate(torch.ones(1, 1, 1, 4), torch.zeros(1, 1)).tolist()
    [[[[1.0, 1.0, 1.0, 1.0]]]]
    """

    def __init__(
        self,
        theta: float = 10_000.0,
        *,
        rotary_dim: int = 0,
        interleaved: bool = False,
        scaling: str = "linear",
        factor: float = 1.0,
    ) -> None:
        """Wavelengths grow from 2π to 2π · theta."""
        super().__init__()
        if rotary_dim % 2 or rotary_dim < 0:
            raise ConfigError(f"rotary_dim ({rotary_dim}) must be an even number of dimensions, or 0 for all")
        if scaling not in ROTARY_SCALINGS:
            allowed = ", ".join(ROTARY_SCALINGS)
            raise ConfigError(f"scaling must be one of {allowed}, not {scaling!r}{nearest(scaling, ROTARY_SCALINGS)}")
        self.theta = theta
        self.rotary_dim = rotary_dim
        self.interleaved = interleaved
        self.scaling = scaling
        self.factor = factor

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        head_size = heads.shape[-1]
        rotary_dim = self.rotary_dim or head_size
        if rotary_dim == head_size:
            return self._rotate_pairs(heads, positions)
        if rotary_dim > head_size:
            raise ConfigError(f"rotary_dim ({rotary_dim}) must be at most the head size ({head_size})")
        rotated = self._rotate_pairs(heads[..., :rotary_dim], positions)
        return torch.cat([rotated, heads[..., rotary_dim:]], dim=-1)

    def _rotate_pairs(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Rotate all dimensions."""
        half = heads.shape[-1] // 2
        angles = self._angles(positions, half).unsqueeze(1)  # [B|1, 1, T, d/2]
        cosine = angles.cos().to(heads.dtype)
        sine = angles.sin().to(heads.dtype)
        if self.interleaved:
            first = heads[..., 0::2]
            second = heads[..., 1::2]
            rotated = [first * cosine - second * sine, second * cosine + first * sine]
            return torch.stack(rotated, dim=-1).flatten(-2)
        first = heads[..., :half]
        second = heads[..., half:]
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

    def _angles(self, positions: Tensor, half: int) -> Tensor:
        """Angle of each pair at each position, [B|1, T, d/2]."""
        theta = self.theta
        if self.scaling == "ntk" and half > 1:
            theta = theta * self.factor ** (half / (half - 1))
        frequencies = 1 / theta ** (torch.arange(half, device=positions.device, dtype=torch.float32) / half)
        if self.scaling == "linear" and self.factor != 1:
            frequencies = frequencies / self.factor
        return positions.float()[..., None] * frequencies


class Alibi(Positions):
    """Scores decrease linearly with distance, in each head at its own slope (Press et al. 2022)."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    @classmethod
    def build(cls, sizes: PositionSizes) -> Self:
        return cls(sizes.num_heads)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distances = (key_positions[:, None, :] - query_positions[:, :, None]).abs()  # [B|1, Q, K]
        slopes = torch.tensor(alibi_slopes(self.num_heads), device=distances.device)
        return -slopes.view(1, -1, 1, 1) * distances[:, None]


class RelativeBias(Positions):
    """Learned bias of each head for each bucket of distances (T5, Raffel et al. 2020); causal in a decoder."""

    def __init__(
        self, num_heads: int, *, is_causal: bool = False, num_buckets: int = 32, max_distance: int = 128
    ) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

    @classmethod
    def build(cls, sizes: PositionSizes) -> Self:
        return cls(sizes.num_heads, is_causal=sizes.is_causal)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        offsets = key_positions[:, None, :] - query_positions[:, :, None]  # [B|1, Q, K]
        buckets = relative_buckets(
            offsets, is_causal=self.is_causal, num_buckets=self.num_buckets, max_distance=self.max_distance
        )
        bias: Tensor = self.relative_attention_bias(buckets)
        return bias.permute(0, 3, 1, 2)


def relative_buckets(offsets: Tensor, *, is_causal: bool, num_buckets: int, max_distance: int) -> Tensor:
    """T5's bucket of each offset of a key from its query: exact for small distances, logarithmic beyond.

    Half of the buckets are for keys after the query, unless it is causal.

    >>> offsets = torch.tensor([-200, -9, -2, 0, 2, 9])
    >>> relative_buckets(offsets, is_causal=False, num_buckets=32, max_distance=128).tolist()
    [15, 8, 2, 0, 18, 24]
    """
    if is_causal:
        first_bucket = torch.zeros_like(offsets)
        distances = (-offsets).clamp_min(0)
    else:
        num_buckets //= 2
        first_bucket = (offsets > 0).long() * num_buckets
        distances = offsets.abs()
    num_exact = num_buckets // 2
    log_ratio = torch.log(distances.clamp_min(1).float() / num_exact) / math.log(max_distance / num_exact)
    log_buckets = num_exact + (log_ratio * (num_buckets - num_exact)).long()
    log_buckets = log_buckets.clamp_max(num_buckets - 1)
    return first_bucket + torch.where(distances < num_exact, distances, log_buckets)


@torch.no_grad()
def position_codes(
    scheme: Positions, positions: range, *, hidden_size: int, head_size: int
) -> tuple[str, NDArray[np.float32]] | None:
    """Name of a scheme and its codes of some positions; None if it neither embeds nor rotates.

    What is added to embeddings is [positions, hidden]. Rotary positions have the cosines and sines that rotate a head,
    [positions, head].

    >>> position_codes(Rotary(), range(1), hidden_size=4, head_size=2)
    ('rotary', array([[1., 0.]], dtype=float32))
    """
    is_rotary = type(scheme).rotate is not Positions.rotate
    if not is_rotary and type(scheme).embed is Positions.embed:
        return None
    if isinstance(scheme, Learned):
        positions = positions[: max(0, len(scheme.weight) - positions.start)]
    parameter = next(scheme.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    indices = torch.arange(positions.start, positions.stop, device=device)
    if is_rotary:
        # rotating (1, 0) in each plane gives (cos, sin)
        num_planes = head_size // 2
        ones = torch.ones(len(positions), num_planes)
        zeros = torch.zeros(len(positions), head_size - num_planes)
        unit_vectors = torch.cat([ones, zeros], dim=1)
        codes = scheme.rotate(unit_vectors[None, None].to(device), indices[None])[0, 0]
    else:
        codes = scheme.embed(torch.zeros(len(positions), hidden_size, device=device), indices)
    return scheme_name(scheme), codes.float().cpu().numpy()


NO_POSITIONS = Positions()


def build_positions(
    kind: str, max_positions: int, hidden_size: int, *, num_heads: int = 1, is_causal: bool = False
) -> Positions:
    """Build the positional scheme of this name for a stack: one of `POSITIONS`, as `learned` or `rotary`.

    >>> build_positions("learned", 16, 8).embed(torch.zeros(3, 8), torch.arange(3)).shape
    torch.Size([3, 8])
    >>> build_positions("alibi", 16, 8, num_heads=2).bias(torch.tensor([[3]]), torch.tensor([[1]])).flatten().tolist()
    [-0.125, -0.0078125]
    """
    scheme: type[Positions] = POSITIONS[kind]
    return scheme.build(PositionSizes(max_positions, hidden_size, num_heads=num_heads, is_causal=is_causal))


def scheme_name(scheme: Positions) -> str:
    """Name of a positional scheme in `POSITIONS`; of one that is not there, that of its class.

    >>> scheme_name(Rotary())
    'rotary'
    """
    names = (name for name, scheme_class in POSITIONS.items() if scheme_class is type(scheme))
    return next(names, type(scheme).__name__)
