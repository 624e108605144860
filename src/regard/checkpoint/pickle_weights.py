"""Convert pickled weights to a safetensors file, in a process of its own with narrow limits.

Nothing else in the package opens a pickle. The process unpickles tensors only (`weights_only`). It gives up the network
where the system allows that, and cannot take more memory, time or disk than the weights need.
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

_MIN_TORCH = (2, 10)  # before it, even `weights_only` could execute code or overwrite memory
_MAX_SECONDS = 600
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def convert_pickled_weights(folder: Path, target: Path) -> None:
    """Write the pickled weights of a folder as a safetensors file into another folder."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _MIN_TORCH:
        needed = ".".join(map(str, _MIN_TORCH))
        raise CheckpointError(f"{folder}: pickled weights are only opened with torch {needed} or later: upgrade torch")
    sources = _find_pickles(folder)
    command = [sys.executable, "-m", __name__, *map(str, sources), str(target / weights.FILE)]
    python_path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path[1:]])
    environment = {**os.environ, "PYTHONPATH": python_path}
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=2 * _MAX_SECONDS
    )
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        if lines and process.returncode == 1:
            reason = lines[-1]
        else:
            reason = f"the process that read them ended with {process.returncode}"
        raise CheckpointError(f"{folder}: the pickled weights cannot be read: {reason}")


def _find_pickles(folder: Path) -> list[Path]:
    """Pickled weight files of a folder: the single file, or the shards of its index."""
    single = folder / weights.PICKLED_FILE
    if single.exists():
        return [single]
    index = folder / weights.PICKLED_INDEX
    weight_map = atomic.read_json(index).get("weight_map")
    names = sorted(set(weight_map.values())) if isinstance(weight_map, dict) else []
    if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise CheckpointError(f"{index}: weight_map must name files of this folder")
    return [folder / name for name in names]


def _unpickle(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # the oldest file format cannot be memory-mapped
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise ValueError("the file must hold tensors by name")
    return {str(name): tensor for name, tensor in content.items()}


def _restrict_process(size: int) -> None:
    """Deny this process the network, and limit its memory, CPU time and files.

    `size` is that of the weights in bytes. A step that the system does not support is left out.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        max_memory = pages * resource.getpagesize() + 6 * size + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (_MAX_SECONDS, _MAX_SECONDS))
        max_file_bytes = 2 * size + (1 << 20)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))


def _main(sources: list[Path], target: Path) -> int:
    try:
        _restrict_process(sum(path.stat().st_size for path in sources))
        tensors: dict[str, Tensor] = {}
        for path in sources:
            tensors |= _unpickle(path)
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        atomic.write_file(target, weights.serialize_tensors(copies))
    except Exception as error:  # any error of an untrusted file becomes one line for the parent process
        message = str(error).splitlines()[0] if str(error) else ""
        sys.stderr.write(f"{type(error).__name__}: {message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main([Path(path) for path in sys.argv[1:-1]], Path(sys.argv[-1])))
