"""What all tests share: nothing that Regard remembers of this machine is read or changed by them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep measurements that runs store in a folder of the test session, and find the installed command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
