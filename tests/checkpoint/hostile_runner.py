"""Opens hostile folders, each in a forked process with limits of memory and time; prints a JSON line for each.

python -m tests.checkpoint.hostile_runner COUNT WORK
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import regard.pipeline.loaders  # noqa: F401  # imported before the forks, which then cost little
from regard.cli import run
from tests.checkpoint.hostile_folders import COMMANDS, MIN_WITH_PICKLES, HostileFolder, hostile_folders, save_bases

MAX_CPU_SECONDS = 5
MAX_WALL_SECONDS = 120  # a process that waits for something uses no processor time
EXTRA_BYTES = 64 << 20
MAX_OUTPUT = 4000


def allocated_bytes(folder: Path) -> int:
    """Bytes of a folder's files on the disk: a sparse file counts for what is in it."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(min(path.stat().st_size, 512 * path.stat().st_blocks) for path in files)


def _limit(num_bytes: int) -> None:
    """Limit this process: twice the folder's size and 64 MB of new memory, and seconds of processor time."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    max_memory = pages * resource.getpagesize() + 2 * num_bytes + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + MAX_CPU_SECONDS + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def _open_in_child(folder: Path, command: list[str], is_limited: bool) -> tuple[int, str]:
    """Fork, run a command on the folder, and return its exit code (negative: a signal) and its messages."""
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.dup2(write_end, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 99
        try:
            if is_limited:
                _limit(allocated_bytes(folder))
            code = run([part.format(folder) for part in command])
        finally:
            os._exit(code)
    os.close(write_end)
    output = b""
    end = time.monotonic() + MAX_WALL_SECONDS
    while select.select([read_end], [], [], max(0.0, end - time.monotonic()))[0]:
        chunk = os.read(read_end, 1 << 16)
        if not chunk:
            break
        output = (output + chunk)[-MAX_OUTPUT:]
    else:
        os.kill(child, signal.SIGKILL)
    os.close(read_end)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), output.decode("utf-8", "replace")


def _check(hostile: HostileFolder, base: Path, work: Path) -> dict[str, object]:
    folder = shutil.copytree(base, work / "hostile")
    hostile.change(folder)
    # converting pickles starts a process of its own, with its own limits
    code, output = _open_in_child(folder, COMMANDS[hostile.base], is_limited=hostile.base != "pickled")
    shutil.rmtree(folder)
    shutil.rmtree(work / "hostile-out", ignore_errors=True)
    is_executed = Path("PICKLE_WAS_EXECUTED").exists()
    return {"name": hostile.name, "code": code, "output": output, "executed": is_executed}


def main(count: int, work: Path) -> None:
    """Open all folders."""
    os.environ["REGARD_CACHE"] = str(work / "cache")
    os.chdir(work)
    bases = save_bases(work / "bases")
    for name, base in bases.items():  # the valid folders first: each must be opened
        if name != "pickled" or count >= MIN_WITH_PICKLES:
            code, output = _open_in_child(base, COMMANDS[name], is_limited=name != "pickled")
            print(json.dumps({"name": f"{name}, unchanged", "code": code, "output": output, "valid": True}))
    for hostile in hostile_folders(bases, count):
        print(json.dumps(_check(hostile, bases[hostile.base], work)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
