"""The device of each rank."""

from __future__ import annotations

import pytest
import torch

from regard.errors import UsageError
from regard.training.device import device_of_rank, process_group_backend


def test_each_rank_of_a_machine_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert device_of_rank("cuda") == "cuda"
    for rank in (0, 1):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert device_of_rank("cuda") == f"cuda:{rank}"
        assert [device_of_rank(name) for name in ("cpu", "cuda:1", "mps")] == ["cpu", "cuda:1", "mps"]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UsageError, match="rank 2 of this machine has no GPU: there are 2"):
        device_of_rank("cuda")


def test_collectives_of_tensors_on_gpus_use_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert process_group_backend() == "gloo"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert process_group_backend() == "cpu:gloo,cuda:nccl"
