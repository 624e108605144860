"""Tests marked `slow` run in `make test-all` alone."""

from __future__ import annotations

import pytest

from tests.scale import RUN_ALL


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if RUN_ALL:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
