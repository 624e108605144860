"""Fenced code blocks of Markdown pages, their commands, and the prose between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUN = ("console", "python")  # languages whose blocks run in the tests
SHOWN = ("text", "latex")  # languages that are only displayed: output, drawings, commands that need a network
_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<language>[^\n`]*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block and the line number of its first line."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def location(self) -> str:
        """File and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Pages whose blocks are checked, the README first."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    opening: re.Match[str] | None = None
    lines: list[str] = []
    start = 0
    for line_number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opening is None:
            if fence:
                opening = fence
                lines = []
                start = line_number + 1
        elif fence and not fence["language"] and len(fence["marks"]) >= len(opening["marks"]):
            language, *_ = [*opening["language"].split(), ""]
            yield Block(page, start, language=language, text="\n".join(lines) + "\n")
            opening = None
        else:
            lines.append(line.removeprefix(opening["indent"]))
    assert opening is None, f"{page}: the fence before line {start} is never closed"


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside its blocks, with their line numbers."""
    is_inside = False
    for line_number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line):
            is_inside = not is_inside
        elif not is_inside:
            yield line_number, line


def commands(block: Block) -> Iterator[tuple[int, str]]:
    """Yield the commands of a console block with their line numbers; a backslash joins a line with the next."""
    command = ""
    start = 0
    for line_number, line in enumerate(block.text.splitlines(), block.line):
        if not command:
            start = line_number
        command += line.removesuffix("\\")
        if not line.endswith("\\"):
            if command.strip() and not command.lstrip().startswith("#"):
                yield start, command.strip()
            command = ""
