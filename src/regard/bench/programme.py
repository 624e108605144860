"""Who takes part in a contest: ours in each number format, then every peer that is installed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

from regard.attention.speed import HOPELESS, bf16_slowdown
from regard.bench.child import Job
from regard.bench.contestant import Entry
from regard.bench.measure import OURS
from regard.bench.ours import ENGINE, UPDATES, USUAL, WORKERS
from regard.bench.peers import Peer, peer
from regard.bench.settings import BenchConfig
from regard.engine.layout import PRECISIONS
from regard.engine.library import absence

_FORMATS = ("float32", "bf16")
_TRAINED = (*_FORMATS, f"bf16 {WORKERS}")


def entries(contest: str, config: BenchConfig, facts: Mapping[str, Any], missing: list[str]) -> list[Entry]:
    """Return the contestants; who cannot take part is named in `missing`, in one line with the reason."""
    given = {**facts, "quick": config.quick, "eole_python": config.eole_python}
    made = [entry(OURS, "ours", contest, variant, config, given) for variant in our_variants(contest, config)]
    for name in config.libraries():
        module, found = peer(name)
        if not found.contests.get(contest):
            continue
        if reason := _absent(found, config):
            missing.append(f"skipped: {reason}")
            continue
        variants = found.variants(contest, quick=config.quick)
        if not found.own_kernels and variants != (variants := bearable(variants)):
            _say_once(
                missing, f"left out: torch in bf16, which takes {bf16_slowdown():.0f} times as long as float32 here"
            )
        if not variants:
            missing.append(f"skipped: {name} has no part in the {contest} of a quick run")
        made += [entry(name, module, contest, variant, config, given) for variant in variants]
    return made


def entry(library: str, module: str, contest: str, variant: str, config: BenchConfig, facts: dict[str, Any]) -> Entry:
    """Return one contestant; the first word of its variant is its number format."""
    return Entry(library, Job(module, contest, variant, config.processors, facts), variant.partition(" ")[0])


def our_variants(contest: str, config: BenchConfig) -> tuple[str, ...]:
    """Return the number formats that we take part in: all there are, in a quick run the usual one."""
    if contest == "translation":
        return (*bearable(_FORMATS), *(f"{one} {ENGINE}" for one in PRECISIONS if not absence()))
    if contest == "encoding" and not absence():  # by the engine, as `regard embed` computes it
        return ("bf16",) if config.quick else PRECISIONS
    variants = _TRAINED if contest in UPDATES and config.processors > 1 else _FORMATS
    if contest == "masked" and not config.quick:
        variants = (*variants, f"bf16 {USUAL}")
    return bearable(variants[1:] if config.quick else variants)


def _say_once(said: list[str], line: str) -> None:
    if line not in said:
        said.append(line)


def fast_format() -> str:
    """Return the number format in which torch is fast here: bf16, or float32 where bf16 is hopeless."""
    return "float32" if bf16_slowdown() > HOPELESS else "bf16"


def bearable(variants: tuple[str, ...]) -> tuple[str, ...]:
    """Return the variants, each once, with float32 in the place of bf16 where torch's bf16 is hopeless."""
    return tuple(dict.fromkeys(one.replace("bf16", fast_format(), 1) for one in variants))


def _absent(found: Peer, config: BenchConfig) -> str:
    """Say why a peer cannot take part; nothing when it can. Eole may be at home in another Python."""
    if found.name != "eole" or not config.eole_python:
        return found.missing()
    try:
        done = subprocess.run([config.eole_python, "-c", "import eole"], capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"eole: {config.eole_python} cannot be run ({error})"
    return "" if done.returncode == 0 else f"eole is not installed in {config.eole_python} (pip install eole)"
