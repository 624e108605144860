"""Registries: lazy imports, suggestions, names that are taken, plugins by entry point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard
from regard.components import FAMILIES
from regard.config.models import ENCODER_HEADS
from regard.errors import UsageError
from regard.registry import TASKS, Task, resolve, task_of_head
from regard.tables import Registry
from tests.scale import HANG_GUARD

HEAD_TASKS = ["embed", "masked-lm", "embed", "masked-lm", "classify", "tag", "answer"]
PLUGIN_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"


def test_an_import_string_is_imported_on_first_use() -> None:
    numbers: Registry[float] = Registry("number", {"pi": "math:pi", "missing": "no_such_module:x"})
    assert list(numbers) == ["pi", "missing"] and "missing" in numbers
    assert numbers["pi"] > 3
    with pytest.raises(ModuleNotFoundError):
        numbers["missing"]


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown model family 'brt' \(did you mean bert\?\): one of transformer, "):
        FAMILIES["brt"]


def test_a_name_that_is_taken_names_both_owners() -> None:
    numbers: Registry[int] = Registry("number", {"one": 1})
    numbers.register("two", 2, owner="first-plugin")
    with pytest.raises(UsageError, match="the number 'one' of second-plugin has the name of one of regard"):
        numbers.register("one", 3, owner="second-plugin")
    with pytest.raises(UsageError, match="'two' of second-plugin has the name of one of first-plugin"):
        numbers.register("two", 3, owner="second-plugin")
    assert dict(numbers) == {"one": 1, "two": 2}


def test_register_rejects_an_unknown_kind_and_a_name_that_is_taken() -> None:
    with pytest.raises(UsageError, match=r"unknown kind 'famly' \(did you mean family\?\)"):
        regard.register("famly", "mine", "mine:FAMILY")
    with pytest.raises(UsageError, match="of mine has the name of one of regard"):
        regard.register("family", "bert", "mine.models:FAMILY")


def test_every_family_builds_the_model_of_its_config() -> None:
    for name, family in FAMILIES.items():
        config = resolve(family.config)
        assert config().family == name
        assert resolve(family.model).__module__.startswith("regard.models.")


def targets(task: Task) -> Iterator[object]:
    """Everything that the row of a task refers to."""
    fields = (
        task.load,
        task.evaluate,
        task.answer,
        task.request,
        task.head_study,
        task.format_metrics,
        task.next_command,
    )
    yield from fields
    yield from (task.procedure, task.distillation, task.read_examples, *task.experiments.values())


@pytest.mark.parametrize("name", TASKS)
def test_every_target_of_a_task_exists(name: str) -> None:
    task = TASKS[name]
    resolved = [resolve(target) for target in targets(task)]
    assert all(target is None or callable(target) for target in resolved)
    assert bool(task.experiments) == bool(task.procedure)
    assert "{}" in task.example and task.example.startswith("regard ")


def test_the_head_of_an_encoder_decides_its_task() -> None:
    assert [task_of_head(head) for head in ENCODER_HEADS] == HEAD_TASKS


def write_plugin(site: Path, name: str, code: str) -> None:
    """A package as pip installs it: a module, and metadata with an entry point."""
    module = name.replace("-", "_")
    (site / f"{module}.py").write_text(code)
    metadata = site / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(PLUGIN_METADATA.format(name=name))
    (metadata / "entry_points.txt").write_text(f"[regard.plugins]\n{module} = {module}:register\n")


def run_with_plugins(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    setup = f"import sys; sys.path.insert(0, {str(site)!r})\n"
    return subprocess.run(
        [sys.executable, "-c", setup + code], capture_output=True, text=True, timeout=HANG_GUARD, check=False
    )


def test_plugins_are_loaded_on_a_miss_and_one_that_raises_is_named(tmp_path: Path) -> None:
    write_plugin(tmp_path, "broken-plugin", "raise ImportError('no module named fantasy')")
    write_plugin(
        tmp_path,
        "good-plugin",
        "def register(regard):\n    regard.register('family', 'mine', 'not_imported_yet:FAMILY')",
    )
    code = """
from regard.components import FAMILIES
from regard.tables import load_plugins
FAMILIES["bert"]
print("before:", "good_plugin" in sys.modules)
print("after:", "mine" in FAMILIES, FAMILIES.owner("mine"), "torch" in sys.modules, len(FAMILIES))
load_plugins()
"""
    process = run_with_plugins(tmp_path, code)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == ["before: False", "after: True good-plugin False 9"]
    assert "good-plugin" not in process.stderr
    assert process.stderr.count("the plugin broken_plugin of broken-plugin is not loaded: ImportError") == 1
    assert "no module named fantasy; repair or uninstall it" in process.stderr


def test_the_command_line_names_a_broken_plugin_in_one_line_and_works(tmp_path: Path) -> None:
    write_plugin(tmp_path, "broken-plugin", "raise ValueError('half a file')")
    code = "from regard.cli import run; from regard.tables import load_plugins as load; import click\n"
    code += "print(run([], click.Command('x', callback=load)))"
    process = run_with_plugins(tmp_path, code)
    assert process.stdout.strip() == "0"
    assert process.stderr == (
        "regard: the plugin broken_plugin of broken-plugin is not loaded: ValueError: half a file; repair or "
        "uninstall it\n"
    )


def test_a_plugin_with_the_name_of_another_is_reported_with_both_owners(tmp_path: Path) -> None:
    write_plugin(
        tmp_path, "taker-plugin", "def register(regard):\n    regard.register('family', 'gpt', 'taker_plugin:FAMILY')"
    )
    process = run_with_plugins(tmp_path, "from regard.components import FAMILIES; print(len(FAMILIES))")
    assert process.stdout.strip() == "8"
    assert "the model family 'gpt' of taker-plugin has the name of one of regard" in process.stderr
