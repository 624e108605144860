"""Sizes of tests in `make test` and in `make test-all`, which sets the environment variable REGARD_TEST_ALL=1."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

RUN_ALL = os.environ.get("REGARD_TEST_ALL", "") not in ("", "0")
# Seconds after which a process, or a page in a browser, is assumed to hang: far more than a busy machine needs.
HANG_GUARD = 1200
PAGE_GUARD = 300


def scaled(full: T, fast: T) -> T:
    """Pick the size of a test: `full` in `make test-all`, `fast` in `make test`."""
    return full if RUN_ALL else fast
