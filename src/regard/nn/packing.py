"""`pack_sequences`: sequences of any form as one packed tensor and its layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.packed_batch import PackedBatch
from regard.errors import UsageError

Sequenced = Sequence[int] | NDArray[np.integer] | Tensor


def pack_sequences(sequences: Sequence[Sequenced], device: torch.device | str = "cpu") -> tuple[Tensor, PackedBatch]:
    """Lay sequences end to end: the packed tensor, [N] token ids or [N, …] vectors, and its layout.

    Sequences are lists of token ids, NumPy arrays or tensors, of any lengths.

    >>> ids, batch = pack_sequences([[5, 6, 7], [8]])
    >>> ids.tolist(), batch.positions.tolist(), batch.pad(ids).tolist()
    ([5, 6, 7, 8], [0, 1, 2, 0], [[5, 6, 7], [8, 0, 0]])
    """
    if not len(sequences):
        raise UsageError("pack_sequences needs at least one sequence")
    tensors = [_to_tensor(index, sequence, device) for index, sequence in enumerate(sequences)]
    shapes = {tensor.shape[1:] for tensor in tensors}
    if len(shapes) > 1:
        listed = ", ".join(str(["T", *shape]) for shape in sorted(shapes))
        raise UsageError(f"sequences of one batch must agree in all but their length, not {listed}")
    lengths = np.array([len(tensor) for tensor in tensors])
    return torch.cat(tensors), PackedBatch(lengths, device)


def _to_tensor(index: int, sequence: Sequenced, device: torch.device | str) -> Tensor:
    tensor = torch.as_tensor(sequence, device=device)
    if tensor.dim() == 0:
        raise UsageError(f"sequence {index} is a number, not a sequence: pass a list of sequences")
    if not len(tensor):
        raise UsageError(f"sequence {index} is empty: leave it out, or give it a start token")
    return tensor if tensor.is_floating_point() else tensor.long()
