"""Which build of torch `make` installs: the decision itself, and the script against local servers."""

from __future__ import annotations

import functools
import http.server
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import install

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tools" / "install.py"
INDEX = "https://example.org/cpu"
CPU_VERSION = f"{install.pinned_torch()}+cpu"

only_linux = pytest.mark.skipif(platform.system() != "Linux", reason="only Linux has a choice of builds")


def choose(**conditions: object) -> install.TorchSource:
    """The choice on Linux without a GPU and with a reachable index, except for the conditions."""
    defaults: dict[str, object] = {
        "system": "Linux",
        "installed": "",
        "configured": [],
        "has_nvidia_card": lambda: False,
        "cpu_index": INDEX,
        "index_error": lambda: "",
    }
    return install.choose_torch_source(**{**defaults, **conditions})  # type: ignore[arg-type]


def test_linux_without_a_gpu_gets_the_cpu_build() -> None:
    source = choose()
    assert source.index == INDEX
    assert source.reason == f"torch: CPU build from {INDEX} (Linux without an NVIDIA card)"


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({"has_nvidia_card": lambda: True}, "nvidia-smi found an NVIDIA card"),
        ({"index_error": lambda: "HTTP 503"}, f"{INDEX} is unreachable: HTTP 503"),
        ({"system": "Darwin"}, "default index (macOS)"),
        ({"system": "Windows"}, "default index (Windows)"),
        ({"configured": ["PIP_INDEX_URL"]}, "nothing chosen (set by PIP_INDEX_URL)"),
        ({"installed": "2.13.0+cpu", "configured": ["PIP_INDEX_URL"]}, "torch 2.13.0+cpu is already installed"),
    ],
)
def test_otherwise_no_index_is_chosen_and_one_line_gives_the_reason(conditions: dict[str, object], reason: str) -> None:
    source = choose(**conditions)
    assert source.index is None
    assert reason in source.reason
    assert "\n" not in source.reason


@pytest.mark.parametrize("conditions", [{"system": "Darwin"}, {"configured": ["UV_INDEX"]}, {"installed": "2.13.0"}])
def test_nothing_is_probed_where_it_does_not_matter(conditions: dict[str, object]) -> None:
    def fail() -> bool:
        raise AssertionError("probed in vain")

    assert choose(has_nvidia_card=fail, index_error=fail, **conditions).index is None


@pytest.mark.parametrize(
    ("uv", "pip_configured", "uv_configured", "installer"),
    [
        (None, False, False, "pip"),
        (None, False, True, "pip"),
        ("/bin/uv", False, False, "uv"),
        ("/bin/uv", True, True, "uv"),
        ("/bin/uv", True, False, "pip"),
    ],
)
def test_uv_is_used_unless_only_pip_is_configured(
    uv: str | None, pip_configured: bool, uv_configured: bool, installer: str
) -> None:
    chosen = install.choose_installer(uv=uv, pip_configured=pip_configured, uv_configured=uv_configured)
    assert chosen == installer


class Machine:
    """A machine as the script sees it: an empty PATH and home, no configured index, no environment yet."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.venv = folder / "venv"
        inherited = {
            name: setting
            for name, setting in os.environ.items()
            if not name.upper().startswith(("PIP_", "UV_")) and not name.lower().endswith("_proxy")
        }
        self.environment = inherited | {
            "PATH": str(self.bin),
            "HOME": str(folder),
            "PIP_CONFIG_FILE": os.devnull,
            "UV_NO_CONFIG": "1",
            "UV_CACHE_DIR": str(folder / "uv-cache"),
            "TORCH_INDEX_TIMEOUT": "120",  # a busy machine responds late
        }

    def add_program(self, name: str, status: int = 0) -> None:
        """Put a program on PATH that only exits."""
        program = self.bin / name
        program.write_text(f"#!/bin/sh\nexit {status}\n", encoding="utf-8")
        program.chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> str:
        """Run the script; return its output."""
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "--venv", str(self.venv), *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def torch_version(self) -> str:
        """The version of torch in the environment."""
        return install.installed_torch(self.venv / "bin" / "python")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder without a log."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


def write_wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    """Write an empty wheel into the folder of its name, the layout of an index."""
    record = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    if requires:
        lines.append(f"Requires-Dist: {requires}")
    wheel_folder = folder / name
    wheel_folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel_folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{record}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{record}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{record}/RECORD", "".join(f"{record}/{file},,\n" for file in ("METADATA", "WHEEL", "RECORD")))


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of two small indexes: `cpu` with torch's CPU build, `default` with its other build and a package."""
    folder = tmp_path_factory.mktemp("indexes")
    write_wheel(folder / "cpu", "torch", CPU_VERSION)
    write_wheel(folder / "default", "torch", install.pinned_torch())
    write_wheel(folder / "default", "needstorch", "1.0", requires="torch>=2.6")
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@only_linux
def test_a_dry_run_shows_the_cpu_index_and_runs_nothing(machine: Machine, indexes: str) -> None:
    printed = machine.run("--dry-run", TORCH_CPU_INDEX=f"{indexes}/cpu").splitlines()
    assert printed[0] == f"torch: CPU build from {indexes}/cpu (Linux without an NVIDIA card)"
    commands = [line.removeprefix("would run: ") for line in printed[1:]]
    assert commands[0].endswith(f"-m venv {machine.venv}")
    assert commands[1].endswith(f"-c constraints.txt --no-deps --index-url {indexes}/cpu torch")
    assert commands[2].endswith("-c constraints.txt -e .")
    assert not machine.venv.exists()


@only_linux
def test_the_password_of_a_mirror_is_not_shown(machine: Machine) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        printed = machine.run("--dry-run", TORCH_CPU_INDEX=f"http://someone:secret@127.0.0.1:{port}")
    assert f"http://***@127.0.0.1:{port} is unreachable" in printed
    assert "secret" not in printed


@only_linux
def test_make_shows_the_same_choice(machine: Machine, indexes: str) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    command = [make, "setup", "DRY_RUN=1", f"PYTHON={sys.executable}", f"VENV={machine.venv}"]
    command.append(f"TORCH_CPU_INDEX={indexes}/cpu")
    environment = machine.environment | {"PATH": f"{machine.bin}:{os.defpath}"}
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        environment.pop(name, None)
    machine.add_program("nvidia-smi", status=9)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert f"torch: CPU build from {indexes}/cpu" in done.stdout, done.stderr
    assert not machine.venv.exists()


@only_linux
def test_a_gpu_is_one_that_nvidia_smi_reports(machine: Machine, indexes: str) -> None:
    machine.add_program("nvidia-smi", status=9)
    assert "CPU build" in machine.run("--dry-run", TORCH_CPU_INDEX=f"{indexes}/cpu")
    machine.add_program("nvidia-smi")
    printed = machine.run("--dry-run", TORCH_CPU_INDEX=f"{indexes}/cpu")
    assert printed.startswith("torch: default build from the default index (nvidia-smi found an NVIDIA card)\n")
    assert "--index-url" not in printed


def send_bytes_for_ever(server: socket.socket) -> None:
    """Respond with a header that never ends."""
    connection, _ = server.accept()
    with connection:
        try:
            while True:
                connection.sendall(b"H")
                time.sleep(0.05)
        except OSError:
            return


@only_linux
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("closed", "Connection refused"),
        ("silent", "no answer within 0.5 s"),
        ("endless", "no answer within 0.5 s"),
        ("missing", "HTTP 404"),
    ],
)
def test_an_unreachable_index_is_abandoned(machine: Machine, indexes: str, answer: str, reason: str) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        settings = {"TORCH_CPU_INDEX": address}
        if answer in ("silent", "endless"):
            server.listen()
            settings["TORCH_INDEX_TIMEOUT"] = "0.5"
        if answer == "endless":
            threading.Thread(target=send_bytes_for_ever, args=(server,), daemon=True).start()
        if answer == "missing":
            address = settings["TORCH_CPU_INDEX"] = f"{indexes}/elsewhere"
        printed = machine.run("--dry-run", **settings)
    first = printed.splitlines()[0]
    assert first.startswith("torch: default build from the default index")
    assert f"({address} is unreachable: " in first
    assert reason in first
    assert "--index-url" not in printed


def test_giving_up_takes_less_than_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_INDEX_TIMEOUT", raising=False)
    assert install.index_timeout() < 5


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_a_wrong_timeout_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TORCH_INDEX_TIMEOUT", value)
    with pytest.raises(SystemExit, match=f"TORCH_INDEX_TIMEOUT is '{value}': give a number of seconds above 0"):
        install.index_timeout()


@only_linux
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PIP_INDEX_URL", "https://someone:secret@example.org/simple"),
        ("PIP_EXTRA_INDEX_URL", "https://example.org/simple"),
        ("PIP_FIND_LINKS", "/srv/wheels"),
        ("PIP_NO_INDEX", "1"),
        ("UV_INDEX_URL", "https://someone:secret@example.org/simple"),
        ("UV_INDEX", "mine=https://example.org/simple"),
        ("UV_DEFAULT_INDEX", "https://example.org/simple"),
        ("UV_EXTRA_INDEX_URL", "https://example.org/simple"),
        ("UV_TORCH_BACKEND", "cpu"),
    ],
)
def test_an_index_in_the_environment_is_respected(machine: Machine, name: str, value: str) -> None:
    if name.startswith("UV_"):
        machine.add_program("uv")
    printed = machine.run("--dry-run", **{name: value})
    assert printed.startswith(f"torch: your own package index, nothing chosen (set by {name})\n")
    assert "--index-url" not in printed
    assert "secret" not in printed


@only_linux
def test_an_index_in_a_configuration_file_is_respected(machine: Machine, tmp_path: Path) -> None:
    pip_conf = tmp_path / "pip.conf"
    pip_conf.write_text("[global]\nindex-url = https://someone:secret@example.org/simple\n", encoding="utf-8")
    printed = machine.run("--dry-run", PIP_CONFIG_FILE=str(pip_conf))
    assert printed.startswith("torch: your own package index, nothing chosen (set by pip.conf global.index-url)\n")
    assert "secret" not in printed

    machine.add_program("uv")
    uv_toml = tmp_path / "uv.toml"
    uv_toml.write_text('[[index]]\nurl = "https://someone:secret@example.org/simple"\n', encoding="utf-8")
    printed = machine.run("--dry-run", UV_NO_CONFIG="", UV_CONFIG_FILE=str(uv_toml))
    assert printed.startswith(f"torch: your own package index, nothing chosen (set by {uv_toml} index)\n")
    assert "secret" not in printed


@only_linux
def test_an_environment_without_pip_hides_no_configuration(machine: Machine, tmp_path: Path) -> None:
    venv.create(machine.venv, with_pip=False)
    pip_conf = tmp_path / "pip.conf"
    pip_conf.write_text("[install]\nfind-links = /srv/wheels\n", encoding="utf-8")
    printed = machine.run("--dry-run", PIP_CONFIG_FILE=str(pip_conf))
    assert printed.startswith("torch: your own package index, nothing chosen (set by pip.conf install.find-links)\n")
    assert "-m ensurepip" in printed


@only_linux
def test_other_settings_do_not_count_as_an_index(machine: Machine, indexes: str) -> None:
    settings = {"PIP_DEFAULT_TIMEOUT": "100", "PIP_NO_INDEX": "0", "PIP_EXTRA_INDEX_URL": "", "UV_LINK_MODE": "copy"}
    assert "CPU build" in machine.run("--dry-run", TORCH_CPU_INDEX=f"{indexes}/cpu", **settings)


@only_linux
def test_uv_on_the_path_does_everything(machine: Machine, indexes: str) -> None:
    machine.add_program("uv")
    printed = machine.run("--dry-run", TORCH_CPU_INDEX=f"{indexes}/cpu").splitlines()
    assert [line.split()[2] for line in printed[1:]] == ["uv", "uv", "uv"]
    assert all("-c constraints.txt" in line for line in printed[2:])
    printed = machine.run("--dry-run", PIP_INDEX_URL="https://example.org/simple").splitlines()
    assert not [line for line in printed[1:] if line.split()[2] == "uv"]


def use_pip(machine: Machine) -> None:
    """Leave PATH without uv."""


def use_uv(machine: Machine) -> None:
    """Put the real uv on PATH."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    (machine.bin / "uv").symlink_to(uv)


@only_linux
@pytest.mark.parametrize("prepare", [use_pip, use_uv])
def test_the_cpu_build_is_installed_once_and_kept(
    machine: Machine, indexes: str, prepare: Callable[[Machine], None]
) -> None:
    prepare(machine)
    package = ("--index-url", f"{indexes}/default", "needstorch")
    assert "CPU build" in machine.run(*package, TORCH_CPU_INDEX=f"{indexes}/cpu")
    assert machine.torch_version() == CPU_VERSION
    assert (machine.venv / "bin" / "python").exists()
    assert machine.run(*package).startswith(f"torch {CPU_VERSION} is already installed\n")
    assert machine.torch_version() == CPU_VERSION


@only_linux
def test_pip_prefers_the_cpu_build_of_an_extra_index(machine: Machine, indexes: str) -> None:
    # a configured index, so that nothing is chosen
    line = f"--extra-index-url {install.CPU_INDEX} -c constraints.txt -e ."
    for page in ("README.md", "docs/start/install.md"):
        assert f"pip install {line}" in (ROOT / page).read_text(encoding="utf-8"), page
    options = line.replace(install.CPU_INDEX, f"{indexes}/cpu").replace("-e .", "needstorch").split()
    machine.run("--index-url", f"{indexes}/default", *options, PIP_FIND_LINKS=str(machine.bin))
    assert machine.torch_version() == CPU_VERSION
