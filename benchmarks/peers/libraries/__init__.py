"""Libraries to compare with, one file each: `LIBRARY` describes it, and `run_<benchmark>` measures it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field

Variants = Mapping[str, tuple[str, ...]]  # benchmark → precisions, or other ways to run

_MODULES = {"trainer": "hf_trainer"}  # library → module, where the names differ


@dataclass(frozen=True)
class Library:
    """A library that Regard is compared with.

    >>> Library("none such", {"no_such_module": "no-such-thing"}, {}).explain_absence()
    'no-such-thing is not installed (pip install no-such-thing)'
    """

    name: str
    requirements: Mapping[str, str]  # module → package
    benchmarks: Variants
    quick: Variants = field(default_factory=dict)  # with --quick
    has_own_kernels: bool = False  # its bf16 is not torch's

    def is_installed(self) -> bool:
        """Whether all requirements are installed."""
        return not self.explain_absence()

    def explain_absence(self) -> str:
        """Which package is missing, with the command to install it; empty when all are installed."""
        for module, package in self.requirements.items():
            if importlib.util.find_spec(module) is None:
                return f"{package} is not installed (pip install {package})"
        return ""

    def variants(self, benchmark: str, *, quick: bool) -> tuple[str, ...]:
        """Variants of a benchmark that the library takes part in."""
        return (self.quick if quick else self.benchmarks).get(benchmark, ())


def load_library(name: str) -> tuple[str, Library]:
    """Module of a library below `benchmarks.peers`, and its description.

    >>> load_library("sentence-transformers")[0]
    'libraries.sentence_transformers'
    """
    module = f"libraries.{_MODULES.get(name, name.replace('-', '_'))}"
    library: Library = importlib.import_module(f"benchmarks.peers.{module}").LIBRARY
    return module, library
