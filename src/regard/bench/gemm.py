"""The yardstick: how many operations a second a large matrix product reaches on this machine, now."""

from __future__ import annotations

import time
from functools import partial

import torch

from regard.attention.speed import HOPELESS, bf16_slowdown
from regard.bench.child import Job, Turns

ROWS, INNER, COLUMNS = 4096, 512, 2048
SECONDS = 0.4  # of one turn
NAME = f"matrix product {ROWS}×{INNER}×{COLUMNS}"


def gemm(job: Job, turns: Turns) -> None:
    """Measure the product in float32, and in bf16 where that is not hopeless."""
    kinds = {"float32": torch.float32} | ({} if bf16_slowdown() > HOPELESS else {"bf16": torch.bfloat16})
    turns.serve({name: partial(operations, kind) for name, kind in kinds.items()})


def operations(kind: torch.dtype, seconds: float = SECONDS) -> float:
    """Return operations a second of one product in this number format.

    >>> operations(torch.float32, 0.01) > 0
    True
    """
    states, weights = torch.randn(ROWS, INNER).to(kind), torch.randn(COLUMNS, INNER).to(kind)
    with torch.inference_mode():
        torch.nn.functional.linear(states, weights)  # the first call prepares the kernel
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            torch.nn.functional.linear(states, weights)
            count += 1
        return 2 * ROWS * INNER * COLUMNS * count / (time.perf_counter() - began)
