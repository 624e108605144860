"""Wheel and source archive: size, contents, and installation into an empty environment."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.scale import HANG_GUARD

ROOT = Path(__file__).parent.parent
MAX_WHEEL_BYTES = 3_000_000
EXCLUDED = {".git", ".venv", "runs", "site", ".mypy_cache", ".ruff_cache", ".pytest_cache", "__pycache__"}


def build(kind: str, tree: Path, folder: Path) -> Path:
    """Build a wheel or a source archive with the package's build backend, in this environment."""
    code = f"import hatchling.build as backend; print(backend.build_{kind}({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, timeout=HANG_GUARD)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source archive of a copy of the tree, and a wheel built from the unpacked archive.

    The engine is compiled once for both, and the one in use is not overwritten.
    """
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: pip install -c constraints.txt -e '.[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*EXCLUDED, "*.so", "build", "dist"))
    archive = build("sdist", tree, folder)
    shutil.unpack_archive(archive, folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    return build("wheel", unpacked, folder), archive


@pytest.mark.slow
def test_the_tree_and_its_source_archive_build_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, _ = built
    from_tree = build("wheel", wheel.parent / "tree", tmp_path)
    assert sorted(zipfile.ZipFile(from_tree).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_is_small_and_contains_every_source(built: tuple[Path, Path]) -> None:
    wheel, _ = built
    assert wheel.stat().st_size < MAX_WHEEL_BYTES
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "regard").rglob("*")
        if path.suffix in (".py", ".js", ".css", ".html", ".typed") and not EXCLUDED & set(path.parts)
    }
    assert "regard/view/assets/page.js" in sources
    assert sorted(sources - names) == []
    assert not [name for name in names if name.split("/")[0] in ("tests", "docs", "benchmarks")]


def test_the_source_archive_contains_what_a_build_needs(built: tuple[Path, Path]) -> None:
    _, archive = built
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "engine/build.py", "constraints.txt"} <= names
    assert not [name for name in names if set(Path(name).parts) & EXCLUDED]


@pytest.mark.parametrize("archive", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["wheel", "source"])
def test_the_built_package_runs_in_an_empty_environment(archive: int, built: tuple[Path, Path], tmp_path: Path) -> None:
    """Only the package is installed; its dependencies, also those of the build, come from this environment."""
    environment_folder = tmp_path / "empty"
    venv.create(environment_folder, with_pip=False, symlinks=os.name != "nt")
    scripts = environment_folder / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    site_packages = subprocess.run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                                   capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    Path(site_packages, "dependencies.pth").write_text("".join(f"{path}\n" for path in dependencies), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    pip += ["--ignore-installed", "--no-build-isolation", str(built[archive])]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=HANG_GUARD)
    assert done.returncode == 0, done.stderr
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for arguments in (
        ["--version"],
        ["doctor", "--quick"],
        ["data", "make", "copy", "--count", "3", "--out", "copy.tsv"],
    ):
        done = subprocess.run([str(scripts / "regard"), *arguments], cwd=tmp_path, env=environment,
                              capture_output=True, text=True, timeout=HANG_GUARD)  # fmt: skip
        assert done.returncode == 0, done.stderr
    code = "import regard, regard.view.page; print(regard.__file__)"
    done = subprocess.run([str(python), "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith(str(environment_folder)), "the installed files, not those of the tree"
    assert len((tmp_path / "copy.tsv").read_text(encoding="utf-8").splitlines()) == 3


def test_the_version_is_the_same_everywhere() -> None:
    import regard

    assert f"\nversion: {regard.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {regard.__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_shell_completes_verbs() -> None:
    code = "from regard.cli import main; main()"
    completion = {"_REGARD_COMPLETE": "bash_complete", "COMP_WORDS": "regard tran", "COMP_CWORD": "1"}
    environment = {**os.environ, **completion, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=HANG_GUARD
    )
    assert done.stdout.split() == ["plain,translate"]
