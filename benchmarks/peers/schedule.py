"""Which runners take part in a benchmark: Regard in each precision, then every installed library."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.config import BenchmarkConfig
from benchmarks.peers.libraries import Library, load_library
from benchmarks.peers.regard_runner import DEFAULT_SETTINGS, ENGINE, UPDATE_BUILDERS, WORKERS
from benchmarks.peers.runner import RunnerSpec
from benchmarks.peers.statistics import REGARD
from benchmarks.peers.worker import Job
from regard.engine.layout import PRECISIONS
from regard.engine.library import unavailable_reason
from regard.hardware import BF16_UNUSABLE_SLOWDOWN, bf16_slowdown

TORCH_PRECISIONS = ("float32", "bf16")
TRAINING_VARIANTS = (*TORCH_PRECISIONS, f"bf16 {WORKERS}")
IMPORT_SECONDS = 120  # limit of importing Eole in another Python


def schedule_runners(
    benchmark: str, config: BenchmarkConfig, settings: Mapping[str, Any], missing: list[str]
) -> list[RunnerSpec]:
    """Runners of a benchmark; libraries that cannot take part are named in `missing`, one line each."""
    job_settings = {**settings, "quick": config.quick, "eole_python": config.eole_python}
    specs = [
        build_spec(REGARD, "regard_runner", benchmark, variant, config, job_settings)
        for variant in regard_variants(benchmark, config)
    ]
    for name in config.libraries():
        module, library = load_library(name)
        if not library.benchmarks.get(benchmark):
            continue
        if reason := _explain_absence(library, config):
            missing.append(f"skipped: {reason}")
            continue
        variants = _library_variants(library, benchmark, config, missing)
        specs += [build_spec(name, module, benchmark, variant, config, job_settings) for variant in variants]
    return specs


def build_spec(
    library: str, module: str, benchmark: str, variant: str, config: BenchmarkConfig, settings: dict[str, Any]
) -> RunnerSpec:
    """One runner; the first word of its variant is the precision."""
    job = Job(module, benchmark, variant=variant, threads=config.num_threads, settings=settings)
    return RunnerSpec(library, job, precision=variant.partition(" ")[0])


def regard_variants(benchmark: str, config: BenchmarkConfig) -> tuple[str, ...]:
    """Variants of Regard: every precision; with --quick, the one that users get."""
    if benchmark == "translation":
        engine_variants = () if unavailable_reason() else tuple(f"{precision} {ENGINE}" for precision in PRECISIONS)
        return (*replace_slow_bf16(TORCH_PRECISIONS), *engine_variants)
    if benchmark == "encoding" and not unavailable_reason():  # in the engine, as `regard embed` computes
        return ("bf16",) if config.quick else PRECISIONS
    variants = TRAINING_VARIANTS if benchmark in UPDATE_BUILDERS and config.num_threads > 1 else TORCH_PRECISIONS
    if benchmark == "masked" and not config.quick:
        variants = (*variants, f"bf16 {DEFAULT_SETTINGS}")
    return replace_slow_bf16(variants[1:] if config.quick else variants)


def _library_variants(library: Library, benchmark: str, config: BenchmarkConfig, missing: list[str]) -> tuple[str, ...]:
    variants = library.variants(benchmark, quick=config.quick)
    if not variants:
        missing.append(f"skipped: {library.name} has no part in the {benchmark} of a quick run")
    if library.has_own_kernels:
        return variants
    usable = replace_slow_bf16(variants)
    message = f"left out: torch in bf16, which takes {bf16_slowdown():.0f} times as long as float32 here"
    if usable != variants and message not in missing:
        missing.append(message)
    return usable


def fast_torch_precision() -> str:
    """Precision in which torch is fast here: bf16, or float32 where bf16 is not usable."""
    return "float32" if bf16_slowdown() > BF16_UNUSABLE_SLOWDOWN else "bf16"


def replace_slow_bf16(variants: tuple[str, ...]) -> tuple[str, ...]:
    """Variants without repetitions, with float32 in place of bf16 where torch's bf16 is not usable."""
    precision = fast_torch_precision()
    return tuple(dict.fromkeys(variant.replace("bf16", precision, 1) for variant in variants))


def _explain_absence(library: Library, config: BenchmarkConfig) -> str:
    """Why a library cannot take part; empty when it can. Eole may be installed in another Python."""
    if library.name != "eole" or not config.eole_python:
        return library.explain_absence()
    command = [config.eole_python, "-c", "import eole"]
    try:
        completed = subprocess.run(command, capture_output=True, timeout=IMPORT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"eole: {config.eole_python} cannot be run ({error})"
    return "" if completed.returncode == 0 else f"eole is not installed in {config.eole_python} (pip install eole)"
