"""Peers: one file a library. Its `PEER` says what it needs and where it takes part; it has a function a contest."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field

Variants = Mapping[str, tuple[str, ...]]  # contest → number formats, or other ways to run


@dataclass(frozen=True)
class Peer:
    """A library that is compared with.

    >>> Peer("none such", {"no_such_module": "no-such-thing"}, {}).missing()
    'no-such-thing is not installed (pip install no-such-thing)'
    """

    name: str
    needs: Mapping[str, str]  # module → what pip installs
    contests: Variants
    quick: Variants = field(default_factory=dict)  # those of a quick run
    own_kernels: bool = False  # its bf16 is not torch's

    def present(self) -> bool:
        """Whether all that it needs is installed."""
        return not self.missing()

    def missing(self) -> str:
        """Say what is not installed and how to get it; nothing when all is there."""
        for module, name in self.needs.items():
            if importlib.util.find_spec(module) is None:
                return f"{name} is not installed (pip install {name})"
        return ""

    def variants(self, contest: str, *, quick: bool) -> tuple[str, ...]:
        """Return the ways in which it takes part in a contest."""
        return (self.quick if quick else self.contests).get(contest, ())


def peer(name: str) -> tuple[str, Peer]:
    """Return the module below `regard.bench` that plays a library, and what it says of itself.

    >>> peer("sentence-transformers")[0]
    'peers.sentence_transformers'
    """
    module = f"peers.{name.replace('-', '_')}"
    found: Peer = importlib.import_module(f"regard.bench.{module}").PEER
    return module, found
