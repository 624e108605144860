"""The rules of the tree, read from its source: floors, torch-free parts, the public surface, help for every setting."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard
from regard.config.settings import Config
from tests.scale import HANG_GUARD

SOURCE = Path(regard.__file__).parent
# A part imports only from lower layers and from itself. Dotted names are folders or modules with a layer of their own.
LAYERS = {
    "errors": -1,
    "config": 0, "tokens": 0, "hardware": 0, "formatting": 0,
    "text": 1, "attention": 1,
    "data": 2, "models.layers": 2,
    "models": 3,
    "decoding": 4, "checkpoint": 4, "engine": 4,
    "tasks": 5, "engine.folder": 5,
    "training": 6, "view": 6, "engine.backend": 6,
    "pipeline": 7, "checkpoint.export": 7,
    "interpret": 8, "server": 8,
    "report": 9,
    "cli": 10,
}  # fmt: skip
TEXT_PARTS, TENSOR_PARTS = {"text", "data"}, {"attention", "models", "models.layers"}  # neither imports the other
WITHOUT_TORCH = {"config", "errors", "formatting", "tokens", "text", "data", "decoding", "engine", "view", "cli"}
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "core", "base_utils"}
MODULES = sorted(SOURCE.rglob("*.py"))


def part_of(module: str) -> str:
    """The part that a module belongs to: the longest entry of `LAYERS` that its name begins with.

    >>> part_of("regard.models.layers.block"), part_of("regard.models.bert")
    ('models.layers', 'models')
    """
    names = module.split(".")[1:]
    for length in range(len(names), 0, -1):
        if (part := ".".join(names[:length])) in LAYERS:
            return part
    return names[0] if names else ""


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """The modules that a file imports anywhere, except for type checking, with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    only_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            yield module, node.lineno
            if module.count(".") == 0 and module == "regard":
                yield from ((f"regard.{alias.name}", node.lineno) for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_lower_layers(path: Path) -> None:
    if path.parent == SOURCE and path.stem in ("__init__", "__main__"):
        return
    own = part_of(module_name(path))
    assert own in LAYERS, f"{own} has no layer: give it one here and in docs/architecture.md"
    for module, line in imports(path):
        if not module.startswith("regard.") or module == "regard.__version__":
            continue
        other = part_of(module)
        if other == own:
            continue
        assert LAYERS[other] < LAYERS[own], f"{path}:{line}: {own} (layer {LAYERS[own]}) imports {other}"
        assert not (own in TEXT_PARTS and other in TENSOR_PARTS), f"{path}:{line}: text parts import tensor parts"
        assert not (own in TENSOR_PARTS and other in TEXT_PARTS), f"{path}:{line}: tensor parts import text parts"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_torch_stays_where_tensors_are(path: Path) -> None:
    if part_of(module_name(path)) not in WITHOUT_TORCH:
        return
    for module, line in imports(path):
        assert module.split(".")[0] not in ("torch", "safetensors", "transformers"), f"{path}:{line}: imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_package_imports_nothing_that_stands_beside_it(path: Path) -> None:
    for module, line in imports(path):
        assert module.split(".")[0] not in ("benchmarks", "docs", "examples", "recipes", "tests"), f"{path}:{line}"


def test_names_of_modules_say_what_they_hold() -> None:
    assert not [path for path in MODULES if path.stem in VAGUE or path.parent.name in VAGUE]


def python(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=HANG_GUARD
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import regard",
        "from regard.cli import run; run(['--help'])",
        "from regard.cli import run; run(['train', '--help'])",
        "from regard.cli import run; run(['translate', '--help'])",
        "import regard.view.page, regard.view.terminal, regard.data.pairs, regard.text.train",
    ],
)
def test_torch_is_not_imported_before_it_is_needed(code: str) -> None:
    heavy = python(f"{code}\nimport sys; print('heavy:', [m for m in ('torch', 'transformers') if m in sys.modules])")
    assert heavy.endswith("heavy: []")


def test_the_command_line_answers_without_rich_or_numpy() -> None:
    loaded = python(
        "from regard.cli import run; run(['train', '--help']); import sys; print('rich.progress' in sys.modules)"
    )
    assert loaded.endswith("False")


def test_the_public_surface_is_sorted_and_resolves() -> None:
    assert regard.__all__ == sorted(regard.__all__)
    assert set(regard._LAZY_EXPORTS) == set(regard.__all__)
    for name in regard.__all__:
        home = getattr(importlib.import_module(f"regard.{regard._LAZY_EXPORTS[name]}"), name)
        assert getattr(regard, name) is home
    assert set(regard.__all__) <= set(dir(regard))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = regard.nothing


def configs() -> Iterator[type[Config]]:
    import regard.config

    for found in pkgutil.iter_modules(regard.config.__path__):
        module = importlib.import_module(f"regard.config.{found.name}")
        for _, value in inspect.getmembers(module, inspect.isclass):
            if issubclass(value, Config) and value is not Config and value.__module__ == module.__name__:
                yield value


def test_every_setting_has_help_and_every_config_its_words() -> None:
    seen = list(configs())
    assert len(seen) >= 8
    for config in seen:
        assert config.__doc__, config
        for knob in config.knobs():
            assert knob.help, f"{config.__name__}.{knob.path} has no help"


SVG_NAMESPACE = "http://www.w3.org/2000/svg"  # a name, never fetched


@pytest.mark.parametrize("path", sorted((SOURCE / "view" / "assets").iterdir()), ids=lambda path: path.name)
def test_assets_make_no_markup_from_text_and_name_no_address(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace(SVG_NAMESPACE, "")
    for banned in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "http://",
        "https://",
        "//cdn",
    ):
        assert banned not in text, f"{path.name} uses {banned}"


# ---- docs/architecture.md

PAGE = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
STEP = re.compile(r"^\| (\d+) \| `([\w/]+\.py): ([\w.]+)` \|", re.MULTILINE)


def defines(path: Path, name: str) -> bool:
    """Whether a file defines a function, a class or a method (`Class.method`)."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for part in name.split("."):
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        node = next((node for node in body if isinstance(node, definitions) and node.name == part), None)
        if node is None:
            return False
        body = node.body
    return True


def test_every_step_of_the_two_paths_exists_and_each_path_has_at_most_thirty() -> None:
    steps = STEP.findall(PAGE)
    assert len(steps) > 40
    missing = [f"{path}: {name}" for _, path, name in steps if not defines(SOURCE / path, name)]
    assert not missing
    assert max(int(number) for number, _, _ in steps) <= 30


def test_the_drawn_tree_has_every_folder() -> None:
    drawn = set(re.findall(r"^  ([\w/]+)/ ", PAGE, re.MULTILINE))
    folders = {
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.is_dir() and path.name != "__pycache__"
    }
    assert drawn == folders


def test_the_layers_are_those_of_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| ((?:`[\w.]+`|[ ,;]|below them)+) \|$", PAGE, re.MULTILINE)
    layers = {part: int(number) for number, parts in rows for part in re.findall(r"`([\w.]+)`", parts)}
    assert layers == {**LAYERS, "errors": 0}


def test_a_change_goes_to_one_place_that_exists() -> None:
    table = PAGE.partition("## Where a change goes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|`]+) \|[^|]*?`([\w/.]+)`[^|`]* \|$", table, re.MULTILINE)
    assert 10 < len(rows) <= 20
    assert all((SOURCE / target).exists() for _, target in rows)
