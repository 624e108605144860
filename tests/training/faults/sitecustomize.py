"""A fault in ranks of a real training: Python imports this module first where its folder is on PYTHONPATH.

REGARD_FAULT names the ranks, the function, which of its calls, and what happens there:
`1 regard.training.trainer Trainer.step 8 kill`, or `0,1 …` for both of two ranks. The time of the fault, by the
monotonic clock of the system, is appended to the file that REGARD_FAULT_TIMES names.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time


def cause_exit() -> None:
    sys.stderr.write("this worker cannot go on\n")
    sys.stderr.flush()
    os._exit(7)


def exhaust_memory() -> None:
    import resource

    import torch

    with open("/proc/self/statm") as file:
        num_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes + 2**20, resource.RLIM_INFINITY))
    torch.zeros(2**28)  # of 4 bytes each


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "kill launcher": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "exit": cause_exit,
    "memory": exhaust_memory,
}


def record_time() -> None:
    path = os.environ.get("REGARD_FAULT_TIMES")
    if path:
        with open(path, "a") as file:
            file.write(f"{time.monotonic()}\n")


class FaultyModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Wraps one function of a module when it is imported."""

    def __init__(self, module: str, function: str, call: int, fault: str) -> None:
        self.module = module
        self.owner, _, self.name = function.rpartition(".")
        self.call = call
        self.fault = FAULTS[fault]

    def find_spec(self, fullname, path, target=None):
        if fullname != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        self.loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        owner = getattr(module, self.owner) if self.owner else module
        original = getattr(owner, self.name)
        num_calls = 0

        @functools.wraps(original)
        def faulty(*arguments, **options):
            nonlocal num_calls
            num_calls += 1
            if num_calls == self.call:
                record_time()
                self.fault()
            return original(*arguments, **options)

        setattr(owner, self.name, faulty)


if os.environ.get("REGARD_FAULT"):
    ranks, module, function, call, fault = os.environ["REGARD_FAULT"].split(maxsplit=4)
    if os.environ.get("RANK") in ranks.split(","):
        sys.meta_path.insert(0, FaultyModule(module, function, call=int(call), fault=fault))
