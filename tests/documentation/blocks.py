"""The fenced blocks of Markdown pages: which there are, and where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUN = ("console", "python")  # languages whose blocks run in the tests
SHOWN = ("text", "latex")  # those that are only read: output, drawings, what needs a network
_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<language>[^\n`]*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the place of its first line."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return the pages whose blocks are checked, the README first."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    opened: re.Match[str] | None = None
    lines: list[str] = []
    start = 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        found = _FENCE.match(line)
        if opened is None and found:
            opened, lines, start = found, [], number + 1
        elif opened is not None and found and not found["language"] and len(found["marks"]) >= len(opened["marks"]):
            yield Block(page, start, (opened["language"].split() or [""])[0], "\n".join(lines) + "\n")
            opened = None
        elif opened is not None:
            lines.append(line.removeprefix(opened["indent"]))
    assert opened is None, f"{page}: the fence before line {start} is never closed"


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page outside its blocks."""
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, line


def commands(block: Block) -> Iterator[tuple[int, str]]:
    """Yield the commands of a console block with their lines; a backslash joins a line with the next."""
    held, start = "", 0
    for number, line in enumerate(block.text.splitlines(), block.line):
        start = start if held else number
        held += line.removesuffix("\\")
        if not line.endswith("\\"):
            if held.strip() and not held.lstrip().startswith("#"):
                yield start, held.strip()
            held = ""
