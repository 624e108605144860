"""Report on this machine: versions, processor, matmul speed by precision, extras, and advice on what is missing."""

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

from regard.engine.backend_timing import has_only_portable_kernels, stored_timings
from regard.engine.library import load_library, unavailable_reason
from regard.hardware import available_cores, processor_name

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "huggingface_hub", "Babel", "click", "rich")
EXTRAS = {  # extra → its modules and their purpose
    "convert": (("sentencepiece", "transformers", "ctranslate2"), "Marian folders in, CTranslate2 out"),
    "figures": (("cairosvg",), "figures as PNG and PDF"),
    "numbers": (("num2words",), "numbers in words as synthetic data"),
    "onnx": (("onnx", "onnxruntime", "onnxscript"), "models as ONNX"),
    "serve": (("fastapi", "uvicorn"), "the page of regard see, served on this machine"),
    "tensorboard": (("tensorboard",), "training curves in TensorBoard"),
}
# processor flag → instruction set, from basic to best
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
_LOW_DISK = 2e9  # bytes
_MIN_BF16_GAIN = 1.2  # speed-up from which bf16 is recommended


@dataclass(frozen=True)
class Diagnosis:
    """Properties of this machine, and advice based on them."""

    versions: dict[str, str]
    processor: str
    cores: int  # available to this process
    memory: int  # bytes
    instructions: list[str]
    accelerators: list[str]
    products: dict[str, float]  # precision → billions of operations per second, where timed
    extras: dict[str, list[str]]  # extra → missing modules
    allocator: str
    free_disk: int  # bytes
    engine: list[str]  # instruction sets of the engine, best first; empty where it is unavailable
    advice: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as plain values."""
        return dict(vars(self))

    def lines(self) -> list[str]:
        """Format the diagnosis for reading."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [
            f"versions      {versions}",
            f"processor     {self.processor or 'unknown'}, {self.cores} cores for this process",
            f"memory        {self.memory / 1e9:.1f} GB",
            f"instructions  {', '.join(self.instructions) or 'none of those that Regard uses'}",
            f"accelerators  {', '.join(self.accelerators) or 'none: everything runs on the processor'}",
            f"engine        {', '.join(self.engine) or 'unavailable: everything runs on torch'}",
        ]
        if self.products:
            speeds = ", ".join(f"{name} {speed:,.0f}" for name, speed in self.products.items())
            lines.append(f"matmul        {speeds} billion operations/s")
        for extra, missing in self.extras.items():
            status = f"missing {', '.join(missing)}" if missing else "installed"
            lines.append(f"extra         {extra}: {status} ({EXTRAS[extra][1]})")
        lines.append(f"allocator     {self.allocator or 'the system’s own'}")
        lines.append(f"free disk     {self.free_disk / 1e9:.1f} GB in this folder")
        return lines + [f"advice        {line}" for line in self.advice]


def diagnose(*, quick: bool = False) -> Diagnosis:
    """Examine the machine; unless `quick`, time a matrix product in each precision."""
    flags = _processor_flags()
    diagnosis = Diagnosis(
        versions=_package_versions(),
        processor=processor_name(),
        cores=available_cores(),
        memory=_memory_bytes(),
        instructions=[name for flag, name in INSTRUCTIONS.items() if flag in flags],
        accelerators=_list_accelerators(),
        products={} if quick else _time_products(),
        extras={extra: _missing_modules(modules) for extra, (modules, _) in EXTRAS.items()},
        allocator=_loaded_allocator(),
        free_disk=shutil.disk_usage(Path.cwd()).free,
        engine=[] if unavailable_reason() else load_library().instructions,
    )
    diagnosis.advice.extend(_advise(diagnosis))
    return diagnosis


def _time_products() -> dict[str, float]:
    from regard.hardware import time_matmuls

    return time_matmuls()


def _describe_portable_engine() -> str:
    """What it means that the engine has no kernels for this processor, with the measurements that are stored."""
    text = (
        "the engine has only portable kernels here: --backend auto times it against torch once for each model shape, "
        "and int8 is probably slower than float32"
    )
    times = [
        f"{timing.precision} engine {1000 * timing.engine:.0f} ms, torch {1000 * timing.torch:.0f} ms"
        for timing in stored_timings()
    ]
    return f"{text}; measured: {', '.join(times)}" if times else text


def _advise(diagnosis: Diagnosis) -> list[str]:
    """Advice on precision, engine, extras, threads, allocator and disk."""
    advice = []
    if diagnosis.products:
        gain = diagnosis.products["bf16"] / diagnosis.products["float32"]
        if gain > _MIN_BF16_GAIN:
            advice.append(
                f"bf16 matmuls are {gain:.1f} times as fast as float32: --precision bf16 pays on large models"
            )
        else:
            advice.append(f"bf16 matmuls run at {gain:.2g} times the speed of float32: stay with --precision float32")
    if not diagnosis.engine:
        advice.append(f"inference is several times as fast with the engine, but {unavailable_reason()}")
    elif has_only_portable_kernels():
        advice.append(_describe_portable_engine())
    for extra, missing in diagnosis.extras.items():
        if missing:
            advice.append(f"for {EXTRAS[extra][1]}: pip install 'regard[{extra}]'")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > diagnosis.cores:
        advice.append(f"OMP_NUM_THREADS is {threads} on {diagnosis.cores} cores: unset it or lower it")
    if not diagnosis.allocator and sys.platform == "linux":
        advice.append("long runs may be faster with another allocator: LD_PRELOAD=libjemalloc.so.2 regard …")
    if diagnosis.free_disk < _LOW_DISK:
        free = f"{diagnosis.free_disk / 1e9:.1f} GB"
        advice.append(f"only {free} are free in this folder: a run keeps several copies of its weights")
    return advice


def _package_versions() -> dict[str, str]:
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


def _missing_modules(modules: tuple[str, ...]) -> list[str]:
    return [module for module in modules if importlib.util.find_spec(module) is None]


def _read_text(path: str) -> str:
    """Text of a file under /proc; empty on systems that have none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _processor_flags() -> set[str]:
    for line in _read_text("/proc/cpuinfo").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(flags.split())
    return set()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _list_accelerators() -> list[str]:
    import torch

    accelerators = [torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        accelerators.append("Apple GPU (mps)")
    return accelerators


def _loaded_allocator() -> str:
    memory_maps = _read_text("/proc/self/maps")
    return next((name for name in _ALLOCATORS if name in memory_maps), "")
