"""What this machine offers: versions, processors, number formats, extras, and what to do about what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.engine.library import load_library, unavailable_reason
from regard.hardware import available_cores, processor_name

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "huggingface_hub", "Babel", "click", "rich")
EXTRAS = {  # extra → the modules it brings, and what they are for
    "convert": (("sentencepiece", "transformers", "ctranslate2"), "Marian folders in, CTranslate2 out"),
    "figures": (("cairosvg",), "figures as PNG and PDF"),
    "made": (("num2words",), "numbers in words as made data"),
    "onnx": (("onnx", "onnxruntime"), "models as ONNX"),
    "serve": (("fastapi", "uvicorn"), "the page of regard see, served on this machine"),
    "tensorboard": (("tensorboard",), "training curves in TensorBoard"),
}
# processor flag → what it gives; the order is from plain to best
INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx_vnni": "AVX-VNNI (8-bit products)",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI (8-bit products)",
    "avx512_bf16": "bf16 products",
    "amx_bf16": "AMX bf16 tiles",
    "amx_int8": "AMX 8-bit tiles",
    "asimd": "NEON",
    "bf16": "bf16 products",
    "i8mm": "8-bit products",
}
_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
_LOW_DISK = 2e9


@dataclass(frozen=True)
class Diagnosis:
    """What was found, and advice drawn from it."""

    versions: dict[str, str]
    processor: str
    cores: int  # that this process may use
    memory: int  # bytes
    instructions: list[str]
    accelerators: list[str]
    products: dict[str, float]  # number format → billions of operations a second, where timed
    extras: dict[str, list[str]]  # extra → modules missing
    allocator: str
    free_disk: int
    engine: list[str]  # the instruction sets it computes with, best first; none: it is absent
    advice: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain values."""
        return dict(vars(self))

    def lines(self) -> list[str]:
        """Return the diagnosis for people."""
        named = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        found = [
            f"versions      {named}",
            f"processor     {self.processor or 'unknown'}, {self.cores} cores for this process",
            f"memory        {self.memory / 1e9:.1f} GB",
            f"instructions  {', '.join(self.instructions) or 'none of those that Regard looks for'}",
            f"accelerators  {', '.join(self.accelerators) or 'none: everything runs on the processor'}",
        ]
        found.append(f"engine        {', '.join(self.engine) or 'absent: everything runs on torch'}")
        if self.products:
            speeds = ", ".join(f"{name} {speed:,.0f}" for name, speed in self.products.items())
            found.append(f"products      {speeds} billion operations/s")
        for extra, missing in self.extras.items():
            state = f"missing {', '.join(missing)}" if missing else "installed"
            found.append(f"{'extra ' + extra:<13} {state} ({EXTRAS[extra][1]})")
        found.append(f"allocator     {self.allocator or 'the system’s own'}")
        found.append(f"free disk     {self.free_disk / 1e9:.1f} GB here")
        return found + [f"advice        {line}" for line in self.advice]


def diagnose(*, quick: bool = False) -> Diagnosis:
    """Look at the machine; unless `quick`, time a product of matrices in each number format."""
    flags = _processor_flags()
    found = Diagnosis(
        versions=_versions(),
        processor=processor_name(),
        cores=available_cores(),
        memory=_memory(),
        instructions=[name for flag, name in INSTRUCTIONS.items() if flag in flags],
        accelerators=_accelerators(),
        products={} if quick else _products(),
        extras={name: [one for one in modules if not _present(one)] for name, (modules, _) in EXTRAS.items()},
        allocator=_allocator(),
        free_disk=shutil.disk_usage(Path.cwd()).free,
        engine=[] if unavailable_reason() else load_library().instructions,
    )
    found.advice.extend(_advice(found))
    return found


def _products() -> dict[str, float]:
    from regard.hardware import time_matmuls

    return time_matmuls()


def _advice(found: Diagnosis) -> list[str]:
    advice = []
    if found.products:
        gain = found.products["bf16"] / found.products["float32"]
        if gain > 1.2:
            advice.append(
                f"bf16 products are {gain:.1f} times as fast as float32: --precision bf16 pays on large models"
            )
        else:
            advice.append(f"bf16 products run at {gain:.2g} times the speed of float32: stay with --precision float32")
    if not found.engine:
        advice.append(f"translating and reading are several times faster with the engine, but {unavailable_reason()}")
    for extra, missing in found.extras.items():
        if missing:
            advice.append(f"for {EXTRAS[extra][1]}: pip install 'regard[{extra}]'")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > found.cores:
        advice.append(f"OMP_NUM_THREADS is {threads} on {found.cores} cores: unset it or lower it")
    if not found.allocator and sys.platform == "linux":
        advice.append("long runs may be faster with another allocator: LD_PRELOAD=libjemalloc.so.2 regard …")
    if found.free_disk < _LOW_DISK:
        advice.append(f"only {found.free_disk / 1e9:.1f} GB are free here: a run keeps several copies of its weights")
    return advice


def _versions() -> dict[str, str]:
    versions = {"Python": platform.python_version()}
    for name in ("regard", *PACKAGES):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "missing" if name != "regard" else _own_version()
    return versions


def _own_version() -> str:
    from regard import __version__

    return __version__


def _present(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _proc(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _processor_flags() -> set[str]:
    for line in _proc("/proc/cpuinfo").splitlines():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(values.split())
    return set()


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _accelerators() -> list[str]:
    import torch

    found = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return found + (["Apple GPU (mps)"] if torch.backends.mps.is_available() else [])


def _allocator() -> str:
    loaded = _proc("/proc/self/maps")
    return next((name for name in _ALLOCATORS if name in loaded), "")
