"""Every code block of the README and the site runs."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from regard.cli import regard as command_line
from regard.plugins import TABLES
from regard.report import demo
from regard.tables import Registry, resolve
from tests.documentation.blocks import ROOT, RUN, SHOWN, Block, blocks, commands, pages
from tests.documentation.workspace import Workspace

PAGES = [str(page.relative_to(ROOT)) for page in pages()]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(demo, "NUM_PAIRS", {"train": 500, "valid": 11})  # as in the demo's own test
        patch.setattr(demo, "NUM_TEST_DATES", 43)
        yield Workspace.create(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def registered_parts() -> Iterator[None]:
    """Remove what a page registers, so that other tests see the tables as they are."""
    tables: list[Registry[Any]] = [resolve(table) for table in TABLES.values()]
    names = [set(table.entries) for table in tables]
    yield
    for table, known in zip(tables, names, strict=True):
        for name in set(table.entries) - known:
            del table.entries[name], table.owners[name]


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, workspace: Workspace) -> None:
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(ROOT / page):
        if block.language == "console":
            for line_number, command in commands(block):
                workspace.run(command, f"{page}:{line_number}")
        elif block.language == "python":
            workspace.run_python(block, names)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_known_language(page: str) -> None:
    for block in blocks(ROOT / page):
        assert block.language in (*RUN, *SHOWN), f"{block.location}: a block is {', '.join((*RUN, *SHOWN))}"


def test_the_table_of_tasks_has_a_valid_command_in_every_row() -> None:
    _, _, section = (ROOT / "README.md").read_text("utf-8").partition("## Tasks\n")
    rows = re.findall(r"^\| .* \| (.*) \|$", section.partition("\n## ")[0], re.MULTILINE)[2:]
    assert len(rows) > 15
    for row in rows:
        if row == "the same command again":
            continue
        match = re.fullmatch(r"`regard (.*)`", row)
        assert match, row
        name, *arguments = shlex.split(match[1])
        verb = command_line.get_command(click.Context(command_line), name)
        if isinstance(verb, click.Group):
            name, *arguments = arguments
            verb = verb.get_command(click.Context(verb), name)
        assert verb is not None, row
        verb.make_context(name, arguments)  # raises for an option or argument that is unknown or missing


def test_a_failing_block_is_reported_with_its_location(workspace: Workspace) -> None:
    with pytest.raises(AssertionError, match="page.md:7: exit code 2: regard info nowhere"):
        workspace.run("regard info nowhere", "page.md:7")
    block = Block(ROOT / "README.md", 3, "python", ">>> 1 + 1\n3\n")
    with pytest.raises(AssertionError, match="Expected:\n    3\nGot:\n    2"):
        workspace.run_python(block, {})


def test_blocks_have_their_line_numbers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n```console\nregard a \\\n  b\n# a comment\nregard c\n```\n\n  ```text\n  out\n  ```\n", "utf-8"
    )
    first, second = blocks(page)
    assert (first.line, first.language, [*commands(first)]) == (4, "console", [(4, "regard a   b"), (7, "regard c")])
    assert (second.language, second.text) == ("text", "out\n")
