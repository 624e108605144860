"""Which device a rank computes on."""

from __future__ import annotations

import os

import torch

from regard.errors import UsageError


def device_of_rank(device: str) -> str:
    """Device of this process: with several ranks on a machine, each has the GPU of its `LOCAL_RANK`.

    A device that is named with its index is left as it is.

    >>> device_of_rank("cpu"), device_of_rank("cuda:1")
    ('cpu', 'cuda:1')
    """
    local_rank = os.environ.get("LOCAL_RANK")
    if device != "cuda" or local_rank is None:
        return device
    num_gpus = torch.cuda.device_count()
    if int(local_rank) >= num_gpus:
        raise UsageError(
            f"rank {local_rank} of this machine has no GPU: there are {num_gpus}, and each rank needs one; start as "
            "many ranks as there are GPUs, or use --device cpu"
        )
    return f"{device}:{local_rank}"


def process_group_backend() -> str:
    """Backend of the collectives: gloo for tensors in main memory, NCCL for those on GPUs.

    >>> process_group_backend().startswith(("gloo", "cpu:gloo"))
    True
    """
    has_nccl = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
