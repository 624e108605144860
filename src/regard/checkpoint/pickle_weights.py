"""Old pickled weights, turned into a safetensors file by a process of its own with narrow limits.

Nothing else in the package opens a pickle. The process unpickles tensors only (`weights_only`), and can neither reach
the network, where the system lets it give that up, nor take more memory, time or disk than the weights need.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from regard.checkpoint import atomic, weights
from regard.errors import CheckpointError

_LEAST_TORCH = (2, 10)  # before it, even `weights_only` could be made to run or overwrite things
_SECONDS = 600
_ALONE = 0x10000000 | 0x40000000  # a user and a network namespace of its own (Linux)


def convert_pickled_weights(folder: Path, target: Path) -> None:
    """Write the pickled weights of a folder as a safetensors file into another folder."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _LEAST_TORCH:
        needed = ".".join(map(str, _LEAST_TORCH))
        raise CheckpointError(f"{folder}: its pickled weights are opened with torch {needed} or later: upgrade torch")
    sources = _sources(folder)
    command = [sys.executable, "-m", __name__, *map(str, sources), str(target / weights.FILE)]
    room = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path[1:]])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=room, timeout=2 * _SECONDS)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        told = lines and done.returncode == 1
        reason = lines[-1] if told else f"the process that read them ended with {done.returncode}"
        raise CheckpointError(f"{folder}: the pickled weights cannot be read: {reason}")


def _sources(folder: Path) -> list[Path]:
    """Return the pickled files of a folder."""
    one, index = folder / weights.OLD_FILE, folder / weights.OLD_INDEX
    if one.exists():
        return [one]
    placed = atomic.read_json(index).get("weight_map")
    names = sorted(set(placed.values())) if isinstance(placed, dict) else []
    if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise CheckpointError(f"{index}: weight_map must name files of this folder")
    return [folder / name for name in names]


def _load(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # a file of the oldest kind cannot be mapped
        found = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ValueError("tensors by name are expected")
    return {str(name): tensor for name, tensor in found.items()}


def _narrow(size: int) -> None:
    """Give up what reading needs not: the network, and more than a few times the size of the weights."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).unshare(_ALONE)
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        memory = pages * resource.getpagesize() + 6 * size + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * size + (1 << 20),) * 2)


def _main(sources: list[Path], target: Path) -> int:
    try:
        _narrow(sum(path.stat().st_size for path in sources))
        tensors = {name: tensor for path in sources for name, tensor in _load(path).items()}
        atomic.write_file(target, weights.serialize_tensors({name: tensor.clone() for name, tensor in tensors.items()}))
    except Exception as error:  # whatever a foreign file causes becomes one line for the parent
        sys.stderr.write(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main([Path(path) for path in sys.argv[1:-1]], Path(sys.argv[-1])))
