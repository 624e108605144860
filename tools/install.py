"""Installs Regard into a virtual environment, with the build of torch that suits the machine.

`make` calls it. By itself: `python3 tools/install.py [--dry-run] [--venv DIR] [arguments of pip install]`, by default
`-e .`. It needs the standard library only, and installs nothing without `-c constraints.txt`. Two variables of the
environment: TORCH_CPU_INDEX names a mirror of PyTorch's index, TORCH_INDEX_TIMEOUT how many seconds it has to answer.
"""

from __future__ import annotations

import argparse
import http.client
import os
import platform
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INDEX_TIMEOUT = 3.0  # seconds, name resolution included; the whole choice takes less than five
NVIDIA_SMI_TIMEOUT = 20.0
PIP_OPTIONS = ("index-url", "pypi-url", "extra-index-url", "find-links", "no-index")
UV_OPTIONS = ("default-index", "index", "index-url", "extra-index-url", "find-links", "no-index", "torch-backend")
FALSE_VALUES = ("", "0", "f", "false", "n", "no", "off")


@dataclass(frozen=True)
class TorchSource:
    """Where torch comes from: an index for torch alone, or what the installer does by default."""

    index: str | None
    reason: str


def choose_torch_source(
    *,
    system: str,
    installed: str,
    configured: Sequence[str],
    has_nvidia_card: Callable[[], bool],
    cpu_index: str,
    index_error: Callable[[], str],
) -> TorchSource:
    """Choose the index for torch. The card and the index are only looked for when they matter.

    `installed` is the version in the environment if it suits, `configured` the user's own settings, and `index_error`
    tells why the CPU index cannot be used (empty if it can).
    """
    if installed:
        return TorchSource(None, f"torch {installed} is already installed")
    if configured:
        return TorchSource(None, f"torch: your own package index, nothing chosen (set by {', '.join(configured)})")
    if system != "Linux":
        name = {"Darwin": "macOS"}.get(system, system)
        return TorchSource(None, f"torch: default build from the default index ({name})")
    if has_nvidia_card():
        return TorchSource(None, "torch: default build from the default index (nvidia-smi found an NVIDIA card)")
    error = index_error()
    if error:
        return TorchSource(
            None,
            "torch: default build from the default index, several gigabytes "
            f"({cpu_index} is unreachable: {error}; TORCH_CPU_INDEX=URL names a mirror)",
        )
    return TorchSource(cpu_index, f"torch: CPU build from {cpu_index} (Linux without an NVIDIA card)")


def choose_installer(*, uv: str | None, pip_configured: bool, uv_configured: bool) -> str:
    """Choose uv where it is on PATH; pip where only pip is configured, since uv does not read pip's settings."""
    if uv is None or (pip_configured and not uv_configured):
        return "pip"
    return "uv"


def has_nvidia_card() -> bool:
    """Whether there is an `nvidia-smi` on PATH that succeeds."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        return subprocess.run([program, "-L"], capture_output=True, timeout=NVIDIA_SMI_TIMEOUT).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def index_error(index: str, timeout: float) -> str:
    """Ask an index for torch's page, once; tell why it cannot be used, or nothing."""
    errors = [f"no answer within {timeout:g} s"]

    def request() -> None:
        context = ssl.create_default_context()
        try:
            if os.environ.get("PIP_CERT"):
                context.load_verify_locations(os.environ["PIP_CERT"])
            urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=timeout, context=context).close()
            errors.append("")
        except urllib.error.HTTPError as error:
            errors.append(f"HTTP {error.code}")
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if not isinstance(reason, TimeoutError):
                errors.append(str(reason))

    # A socket's timeout bounds neither name resolution nor a server that sends byte by byte: a thread is left behind.
    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(timeout)
    return errors[-1]


def index_timeout() -> float:
    """Seconds that the CPU index has to answer."""
    value = os.environ.get("TORCH_INDEX_TIMEOUT", "")
    try:
        seconds = float(value or INDEX_TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise SystemExit(f"TORCH_INDEX_TIMEOUT is {value!r}: give a number of seconds above 0, such as 10")
    return seconds


def is_set(value: object) -> bool:
    """Whether a setting holds something other than false or nothing."""
    return str(value).strip("'\"").lower() not in FALSE_VALUES


def environment_settings(prefix: str, options: Sequence[str]) -> list[str]:
    """Names of the environment variables that configure a package index."""
    names = [prefix + option.upper().replace("-", "_") for option in options]
    return [name for name in names if is_set(os.environ.get(name, ""))]


def list_pip_config(python: Path) -> str:
    """What pip reads from its files, told by the pip of the environment or, without one, of this Python."""
    for program in (str(python), sys.executable):
        command = [program, "-m", "pip", "--disable-pip-version-check", "config", "list"]
        if Path(program).exists():
            listed = subprocess.run(command, capture_output=True, text=True)
            if listed.returncode == 0:
                return listed.stdout
    return ""


def pip_settings(python: Path) -> list[str]:
    """Names, not values (they may hold passwords), of the settings of an index for pip."""
    settings = environment_settings("PIP_", PIP_OPTIONS)
    for line in list_pip_config(python).splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in ("global", "install") and option in PIP_OPTIONS and is_set(value):
            settings.append(f"pip.conf {name}")
    return settings


def uv_config_files() -> list[Path]:
    """The files that uv reads: the nearest `uv.toml`, the user's and the system's."""
    if is_set(os.environ.get("UV_NO_CONFIG", "")):
        return []
    if os.environ.get("UV_CONFIG_FILE"):
        return [Path(os.environ["UV_CONFIG_FILE"])]
    nearest = [path for path in (folder / "uv.toml" for folder in (ROOT, *ROOT.parents)) if path.is_file()][:1]
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    system = [Path(folder) for folder in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    return nearest + [folder / "uv" / "uv.toml" for folder in (user, *system, Path("/etc"))]


def uv_settings() -> list[str]:
    """Names of the settings of an index for uv."""
    import tomllib  # here, so that an older Python gets to the message about its version

    settings = environment_settings("UV_", UV_OPTIONS)
    for path in uv_config_files():
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there, or for uv to complain about
            continue
        for option in UV_OPTIONS:
            if is_set(table.get(option, "")) or is_set(table.get("pip", {}).get(option, "")):
                settings.append(f"{path} {option}")
    return settings


def pinned_torch() -> str:
    """The version of torch in constraints.txt."""
    match = re.search(r"^torch==(\S+)", (ROOT / CONSTRAINTS).read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise SystemExit(f"{CONSTRAINTS} has no line torch==VERSION: add the version that the tests run with")
    return match[1]


def installed_torch(python: Path) -> str:
    """The version of torch in an environment if it is the pinned one, in whatever build; otherwise nothing."""
    if not python.exists():
        return ""
    code = "import importlib.metadata; print(importlib.metadata.version('torch'))"
    version = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True).stdout.strip()
    return version if version.partition("+")[0] == pinned_torch() else ""


def plan_commands(
    installer: str, python: Path, venv: Path, source: TorchSource, requirements: Sequence[str]
) -> list[list[str]]:
    """The commands of an install: the environment where it is missing, torch where it has its own index, the rest."""
    commands = []
    if installer == "uv":
        install = ["uv", "pip", "install", "--python", str(python)]
        if not python.exists():
            commands.append(["uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(venv)])
    else:
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "install"]
        if not python.exists():
            commands.append([sys.executable, "-m", "venv", str(venv)])
        elif subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode:
            commands.append([str(python), "-m", "ensurepip"])  # an environment by uv has no pip
    install += ["--quiet", "-c", CONSTRAINTS]
    if source.index:
        # torch alone: that index mirrors some of what torch needs in old versions
        commands.append([*install, "--no-deps", "--index-url", source.index, "torch"])
    commands.append([*install, *requirements])
    return commands


def hide_passwords(text: str) -> str:
    """Replace user names and passwords in addresses."""
    return re.sub(r"://[^/\s@]+@", "://***@", text)


def main() -> int:
    """Choose, say what was chosen, install."""
    if sys.version_info < (3, 11):  # noqa: UP036, the system's Python may be older
        found = platform.python_version()
        print(f"Python 3.11 or newer is needed, this is {found}: make PYTHON=/path/to/python3.11", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--dry-run", action="store_true", help="show the choice and the commands, run nothing")
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="the virtual environment (default: .venv)")
    options, requirements = parser.parse_known_args()
    python = options.venv / "bin" / "python"
    os.chdir(ROOT)

    from_pip = pip_settings(python)
    from_uv = uv_settings()
    installer = choose_installer(uv=shutil.which("uv"), pip_configured=bool(from_pip), uv_configured=bool(from_uv))
    cpu_index = os.environ.get("TORCH_CPU_INDEX") or CPU_INDEX
    source = choose_torch_source(
        system=platform.system(),
        installed=installed_torch(python),
        configured=from_pip + (from_uv if installer == "uv" else [f"{name}, which pip ignores" for name in from_uv]),
        has_nvidia_card=has_nvidia_card,
        cpu_index=cpu_index,
        index_error=lambda: index_error(cpu_index, index_timeout()),
    )
    print(hide_passwords(source.reason), flush=True)
    for command in plan_commands(installer, python, options.venv, source, requirements or ["-e", "."]):
        shown = hide_passwords(shlex.join(command))
        print("would run:" if options.dry_run else "+", shown, flush=True)
        if options.dry_run:
            continue
        status = subprocess.run(command).returncode
        if status:
            hint = "; PIP_INDEX_URL=https://pypi.org/simple takes the default index" if source.index in command else ""
            print(f"This command failed (status {status}): {shown}{hint}", file=sys.stderr)
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
