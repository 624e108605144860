"""Rules for all tests: slow ones run in `make test-all` only, and no test changes the thread count of the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.scale import RUN_ALL

# By default Hypothesis also fails on slow cases and on data that are slow to generate.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A file stays with one process: the longest begin first, so that both processes end at about the same time.
LONGEST_FILES = ("test_distributed.py", "test_page_browser.py", "test_sanitizers.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST_FILES)
    if RUN_ALL:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Restore torch's thread count: a command that runs in this process sets it to the number of cores."""
    threads = torch.get_num_threads()
    try:
        return (yield)
    finally:
        torch.set_num_threads(threads)
