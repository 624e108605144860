"""Help, messages, pages, page assets, engine, examples and recipes use the field's terms, not our own phrases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import reference
from tests.documentation.blocks import ROOT, pages
from tests.documentation.dialect import PHRASES, patterns

SOURCES = ROOT / "src" / "regard"
ASSETS = SOURCES / "view" / "assets"
C_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
RENAMED = SOURCES / "cli" / "renamed.py"  # it has the old names of options


def matches(text: str) -> list[str]:
    """Phrases of a text with what to write instead.

    >>> matches("the chances of each label")
    ['chances (write: probabilities)']
    """
    found = []
    for phrase, pattern in patterns().items():
        found += [f"{match[0]} (write: {PHRASES[phrase]})" for match in pattern.finditer(text)]
    return found


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the string literals of a module, docstrings included, with their line numbers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_there_are_at_least_120_phrases_and_each_is_found_in_a_text() -> None:
    assert len(PHRASES) >= 120
    assert matches("Each row shows where it\nlooked.") == ["where it\nlooked (write: what … attended to)"]
    assert not matches("Attention weights of every head")


@pytest.mark.parametrize("package", sorted(path.name for path in SOURCES.iterdir() if (path / "__init__.py").exists()))
def test_messages_and_help_have_no_dialect(package: str) -> None:
    check_modules(SOURCES.joinpath(package).rglob("*.py"))


def test_modules_at_the_top_have_no_dialect() -> None:
    check_modules(SOURCES.glob("*.py"))


def check_modules(paths: Iterator[Path]) -> None:
    found = []
    for path in paths:
        if path != RENAMED:
            for line, text in strings(path):
                found += [f"{path.relative_to(ROOT)}:{line}: {match}" for match in matches(text)]
    assert not found


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in [*pages(), ROOT / "SECURITY.md"]])
def test_a_page_has_no_dialect(page: str) -> None:
    assert not matches((ROOT / page).read_text(encoding="utf-8"))


def test_messages_of_the_engine_have_no_dialect() -> None:
    found = []
    for path in sorted((ROOT / "engine" / "source").rglob("*.cpp")):
        for literal in C_STRING.findall(path.read_text(encoding="utf-8")):
            found += [f"{path.relative_to(ROOT)}: {match}" for match in matches(literal)]
    assert not found


@pytest.mark.parametrize(
    ("folder", "suffixes"),
    [
        (ASSETS, (".js", ".html")),  # the page
        (ROOT / "examples", (".py", ".ipynb")),
        (ROOT / "recipes", (".py", ".json")),
    ],
    ids=["page", "examples", "recipes"],
)
def test_other_sources_have_no_dialect(folder: Path, suffixes: tuple[str, ...]) -> None:
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in suffixes]
    assert paths
    found = []
    for path in paths:
        found += [f"{path.relative_to(ROOT)}: {match}" for match in matches(path.read_text(encoding="utf-8"))]
    assert not found


def test_the_generated_reference_has_no_dialect() -> None:
    assert not [f"{name}: {match}" for name, text in reference.pages().items() for match in matches(text)]
