"""FLOP/s that a large matrix product reaches on this machine: the peak that benchmarks are compared with."""

from __future__ import annotations

import time
from functools import partial

import torch

from benchmarks.peers.worker import Channel, Job
from regard.hardware import BF16_UNUSABLE_SLOWDOWN, bf16_slowdown

ROWS = 4096
INNER = 512
COLUMNS = 2048
SECONDS = 0.4  # of one measurement
NAME = f"matrix product {ROWS}×{INNER}×{COLUMNS}"


def run_gemm(job: Job, channel: Channel) -> None:
    """Measure the product in float32, and in bf16 where that is usable."""
    dtypes = {"float32": torch.float32}
    if bf16_slowdown() <= BF16_UNUSABLE_SLOWDOWN:
        dtypes["bf16"] = torch.bfloat16
    channel.serve({precision: partial(measure_flops, dtype) for precision, dtype in dtypes.items()})


def measure_flops(dtype: torch.dtype, seconds: float = SECONDS) -> float:
    """FLOP/s of the product in a data type.

    >>> measure_flops(torch.float32, 0.01) > 0
    True
    """
    inputs = torch.randn(ROWS, INNER).to(dtype)
    weights = torch.randn(COLUMNS, INNER).to(dtype)
    with torch.inference_mode():
        torch.nn.functional.linear(inputs, weights)  # the first call prepares the kernel
        products = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            torch.nn.functional.linear(inputs, weights)
            products += 1
        return 2 * ROWS * INNER * COLUMNS * products / (time.perf_counter() - start)
