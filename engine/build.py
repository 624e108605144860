"""Builds the engine: by itself (`python engine/build.py`), and as the package is built, installed or set up.

Nothing fails where there is no compiler: the package is then complete without the engine, and runs on torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by itself
    BuildHookInterface = object

HERE = Path(__file__).resolve().parent
LIBRARY = "regard_engine.so"
PLACE = Path("src/regard/engine") / LIBRARY
COMPILERS = ("c++", "g++", "clang++")


def has_compiler() -> bool:
    """Whether there is a C++ compiler."""
    return bool(os.environ.get("CXX")) or any(shutil.which(name) for name in COMPILERS)


def build(root: Path) -> str:
    """Build the library and put it into the package; return why it could not be done, or nothing."""
    if not has_compiler():
        return "no C++ compiler was found"
    if not shutil.which("cmake"):
        return "cmake was not found"
    with tempfile.TemporaryDirectory() as room:
        for command in (["cmake", "-S", str(HERE), "-B", room], ["cmake", "--build", room, "--parallel"]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode:
                return f"`{' '.join(command)}` failed:\n{done.stdout[-2000:]}"
        made = Path(room) / LIBRARY
        if not made.exists():
            return "the compiler that was found is not supported: GCC or Clang is needed"
        # a process that uses the old one keeps it
        beside = root / PLACE.with_suffix(".new")
        shutil.copyfile(made, beside)
        beside.replace(root / PLACE)
    return ""


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    """What the package's build calls."""

    def dependencies(self) -> list[str]:
        """Return what must be installed to build: cmake, where it is all that is missing."""
        return ["cmake>=3.18"] if has_compiler() and not shutil.which("cmake") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the engine into the wheel, or into the source tree for an editable one."""
        if self.target_name != "wheel":
            return
        problem = build(Path(self.root))
        if problem:
            self.app.display_warning(f"the engine is left out, Regard computes with torch: {problem}")
            return
        build_data["artifacts"].append(str(PLACE))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    found = build(HERE.parent)
    print(found or f"built {PLACE}")
    sys.exit(1 if found else 0)
