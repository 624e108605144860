"""Rules of the source tree: import layers, modules without torch, the public names, help for every setting."""

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
    "errors": -4,
    "tables": -3,
    "registry": -2,
    "components": -1, "plugins": -1,
    "config": 0, "metric_table": 0, "packed_tokens": 0, "hardware": 0, "formatting": 0, "cancellation": 0,
    "text": 1, "attention": 1, "backends": 1,
    "data": 2, "models.layers": 2,
    "models": 3,
    "decoding": 4, "checkpoint": 4, "engine": 4,
    "tasks": 5, "engine.folder": 5, "search": 5,
    "training": 6, "view": 6, "engine.backend": 6, "engine.backend_timing": 5,
    "pipeline": 7, "checkpoint.export": 7, "nn": 7,
    "interpret": 8, "server": 8,
    "report": 9,
    "cli": 10,
}  # fmt: skip
TEXT_PARTS = {"text", "data"}  # these and the tensor parts do not import each other
TENSOR_PARTS = {"attention", "models", "models.layers"}
WITHOUT_TORCH = {
    *("config", "errors", "tables", "registry", "components", "plugins", "metric_table", "formatting", "packed_tokens"),
    *("backends", "cancellation", "text", "data", "decoding", "search", "engine", "engine.folder", "engine.backend"),
    "engine.backend_timing",
    *("view", "cli"),
}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "core", "base_utils"}
MODULES = sorted(SOURCE.rglob("*.py"))


def part_of(module: str) -> str:
    """The part that a module belongs to: the longest entry of `LAYERS` that its name begins with.

    >>> part_of("regard.models.layers.block"), part_of("regard.models.bert")
    ('models.layers', 'models')
    """
    names = module.split(".")[1:]
    for length in range(len(names), 0, -1):
        part = ".".join(names[:length])
        if part in LAYERS:
            return part
    return names[0] if names else ""


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Modules that a file imports, except for type checking, with line numbers."""
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
def test_only_tensor_parts_import_torch(path: Path) -> None:
    if part_of(module_name(path)) not in WITHOUT_TORCH:
        return
    for module, line in imports(path):
        assert module.split(".")[0] not in ("torch", "safetensors", "transformers"), f"{path}:{line}: imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_package_imports_no_sibling_folder(path: Path) -> None:
    for module, line in imports(path):
        assert module.split(".")[0] not in ("benchmarks", "docs", "examples", "recipes", "tests"), f"{path}:{line}"


def test_no_module_has_a_vague_name() -> None:
    assert not [path for path in MODULES if path.stem in VAGUE_NAMES or path.parent.name in VAGUE_NAMES]


def run_python(code: str) -> str:
    """Run code in a new interpreter and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANG_GUARD)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import regard",
        "import regard; regard.search.beam_search",
        "from regard.cli import run; run(['--help'])",
        "from regard.cli import run; run(['train', '--help'])",
        "from regard.cli import run; run(['translate', '--help'])",
        "import regard.view.page, regard.view.terminal, regard.data.pairs, regard.text.train",
        "import regard.pipeline.load",  # what reads run directories and engine folders
    ],
)
def test_torch_is_not_imported_before_it_is_needed(code: str) -> None:
    list_heavy = "import sys; print('heavy:', [name for name in ('torch', 'transformers') if name in sys.modules])"
    output = run_python(f"{code}\n{list_heavy}")
    assert output.endswith("heavy: []")


def test_help_does_not_import_rich_progress() -> None:
    output = run_python(
        "from regard.cli import run; run(['train', '--help']); import sys; print('rich.progress' in sys.modules)"
    )
    assert output.endswith("False")


def test_public_names_are_sorted_and_resolve() -> None:
    assert regard.__all__ == sorted(regard.__all__)
    assert set(regard._LAZY_EXPORTS) == set(regard.__all__)
    for name in regard.__all__:
        module = importlib.import_module(f"regard.{regard._LAZY_EXPORTS[name]}")
        assert getattr(regard, name) is getattr(module, name)
    assert set(regard.__all__) <= set(dir(regard))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = regard.nothing


@pytest.mark.parametrize("name", regard._LAZY_MODULES)
def test_names_of_public_modules_are_sorted_and_have_an_example(name: str) -> None:
    module = getattr(regard, name)
    assert name in dir(regard)
    assert module.__all__ == sorted(module.__all__)
    without_example = [member for member in module.__all__ if ">>> " not in (getattr(module, member).__doc__ or "")]
    assert not without_example


def config_classes() -> Iterator[type[Config]]:
    """Every config class that a module of `regard.config` defines."""
    import regard.config

    for module_info in pkgutil.iter_modules(regard.config.__path__):
        module = importlib.import_module(f"regard.config.{module_info.name}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, Config) and member is not Config and member.__module__ == module.__name__:
                yield member


def test_every_setting_has_help_and_every_config_a_docstring() -> None:
    classes = list(config_classes())
    assert len(classes) >= 8
    for config_class in classes:
        assert config_class.__doc__, config_class
        for setting in config_class.knobs():
            assert setting.help, f"{config_class.__name__}.{setting.path} has no help"


SVG_NAMESPACE = "http://www.w3.org/2000/svg"  # a name, never fetched
BANNED_IN_ASSETS = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "http://",
    "https://",
    "//cdn",
)


@pytest.mark.parametrize("path", sorted((SOURCE / "view" / "assets").iterdir()), ids=lambda path: path.name)
def test_assets_build_no_markup_from_text_and_load_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace(SVG_NAMESPACE, "")
    for banned in BANNED_IN_ASSETS:
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


def test_every_step_of_the_documented_paths_exists_and_each_path_has_at_most_thirty() -> None:
    steps = STEP.findall(PAGE)
    assert len(steps) > 40
    missing = [f"{path}: {name}" for _, path, name in steps if not defines(SOURCE / path, name)]
    assert not missing
    assert max(int(index) for index, _, _ in steps) <= 30


def test_the_documented_tree_has_every_folder() -> None:
    documented = set(re.findall(r"^  ([\w/]+)/ ", PAGE, re.MULTILINE))
    folders = {
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.is_dir() and path.name != "__pycache__"
    }
    assert documented == folders


def test_the_layers_match_the_documentation() -> None:
    rows = re.findall(r"^\| (\d+) \| ((?:`[\w.]+`|[ ,;]|below them)+) \|$", PAGE, re.MULTILINE)
    documented = {part: int(layer) for layer, parts in rows for part in re.findall(r"`([\w.]+)`", parts)}
    assert documented == {**LAYERS, "components": 0, "plugins": 0, "registry": 0, "tables": 0, "errors": 0}


def test_the_table_of_changes_names_existing_files() -> None:
    table = PAGE.partition("## Where a change goes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|`]+) \|[^|]*?`([\w/.]+)`[^|`]* \|$", table, re.MULTILINE)
    assert 10 < len(rows) <= 20
    assert all((SOURCE / target).exists() for _, target in rows)
