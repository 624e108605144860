"""What the bits of floating-point results depend on besides the code: processor, instruction sets, versions."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

HARDWARE = ("processor", "torch instruction set", "engine instruction set")
PROCESSOR_FIELDS = {"": "model name", "family": "cpu family", "model": "model"}
LIBRARIES = ("torch", "numpy", "tokenizers", "transformers", "sacrebleu", "scikit-learn")


def describe_machine(engine_instructions: str) -> dict[str, str]:
    """Describe processor, instruction sets and library versions; absent libraries are left out."""
    import torch

    found = {
        "processor": _processor_name(),
        "torch instruction set": torch.backends.cpu.get_cpu_capability(),
        "engine instruction set": engine_instructions,
        "python": platform.python_version(),
    }
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except ModuleNotFoundError:
            continue
    return found


def find_differences(recorded: dict[str, str], present: dict[str, str]) -> list[str]:
    """Name the fields that differ.

    >>> find_differences({"processor": "A", "torch": "2"}, {"processor": "B", "torch": "2"})
    ['processor']
    """
    return [name for name in {**recorded, **present} if recorded.get(name) != present.get(name)]


def _processor_name() -> str:
    """Model name, family and model of the first processor; the architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    named = {label: fields[key] for label, key in PROCESSOR_FIELDS.items() if fields.get(key)}
    identity = ", ".join(f"{label} {value}".strip() for label, value in named.items())
    return identity or platform.processor() or platform.machine()
