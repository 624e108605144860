"""Build the engine: as a script (`python engine/build.py`), and as a build hook of the package.

Without a compiler nothing fails: the package is complete without the engine, and runs on torch.
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
except ImportError:  # run as a script
    BuildHookInterface = object

ENGINE_DIR = Path(__file__).resolve().parent
LIBRARY_NAME = "regard_engine.so"
LIBRARY_PATH = Path("src/regard/engine") / LIBRARY_NAME
COMPILERS = ("c++", "g++", "clang++")


def has_compiler() -> bool:
    """Whether there is a C++ compiler."""
    return bool(os.environ.get("CXX")) or any(shutil.which(name) for name in COMPILERS)


def build(root: Path) -> str:
    """Build the library into the package. Returns why it cannot be built, or an empty string."""
    if not has_compiler():
        return "no C++ compiler found"
    if not shutil.which("cmake"):
        return "cmake not found"
    with tempfile.TemporaryDirectory() as build_dir:
        configure = ["cmake", "-S", str(ENGINE_DIR), "-B", build_dir]
        compile_all = ["cmake", "--build", build_dir, "--parallel"]
        for command in (configure, compile_all):
            process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if process.returncode:
                return f"`{' '.join(command)}` failed:\n{process.stdout[-2000:]}"
        library = Path(build_dir) / LIBRARY_NAME
        if not library.exists():
            return "the C++ compiler is not supported: GCC or Clang is needed"
        # replaced, not overwritten: a process that has mapped the old file keeps it
        temporary = root / LIBRARY_PATH.with_suffix(".new")
        shutil.copyfile(library, temporary)
        temporary.replace(root / LIBRARY_PATH)
    return ""


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Hatchling's build hook."""

    def dependencies(self) -> list[str]:
        """Requirements of the build: cmake, if it is all that is missing."""
        return ["cmake>=3.18"] if has_compiler() and not shutil.which("cmake") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the engine into the wheel, or into the source tree of an editable install."""
        if self.target_name != "wheel":
            return
        failure = build(Path(self.root))
        if failure:
            self.app.display_warning(f"the engine is not built, Regard runs on torch: {failure}")
            return
        build_data["artifacts"].append(str(LIBRARY_PATH))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    failure = build(ENGINE_DIR.parent)
    print(failure or f"built {LIBRARY_PATH}")
    sys.exit(1 if failure else 0)
