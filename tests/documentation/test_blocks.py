"""Every code block of the README and the site runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.report import demo
from tests.documentation.blocks import ROOT, RUN, SHOWN, Block, blocks, commands, pages
from tests.documentation.room import Room

PAGES = [str(page.relative_to(ROOT)) for page in pages()]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(demo, "PAIRS", {"train": 500, "valid": 11})  # as in the demo's own test
        patch.setattr(demo, "UNSEEN", 43)
        yield Room.furnished(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, room: Room) -> None:
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(ROOT / page):
        if block.language == "console":
            for line, command in commands(block):
                room.run(command, f"{page}:{line}")
        elif block.language == "python":
            room.python(block, names)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    for block in blocks(ROOT / page):
        assert block.language in (*RUN, *SHOWN), f"{block.place}: a block is {', '.join((*RUN, *SHOWN))}"


def test_a_block_that_fails_is_told_with_its_place(room: Room) -> None:
    with pytest.raises(AssertionError, match="here:7: exit code 2: regard info nowhere"):
        room.run("regard info nowhere", "here:7")
    block = Block(ROOT / "README.md", 3, "python", ">>> 1 + 1\n3\n")
    with pytest.raises(AssertionError, match="Expected:\n    3\nGot:\n    2"):
        room.python(block, {})


def test_blocks_are_found_with_their_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n```console\nregard a \\\n  b\n# only words\nregard c\n```\n\n  ```text\n  out\n  ```\n", "utf-8"
    )
    first, second = blocks(page)
    assert (first.line, first.language, [*commands(first)]) == (4, "console", [(4, "regard a   b"), (7, "regard c")])
    assert (second.language, second.text) == ("text", "out\n")
