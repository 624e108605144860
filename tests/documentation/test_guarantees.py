"""The page on guarantees: each names the tests that check it, and those tests exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.documentation.blocks import DOCS, ROOT

PAGE = DOCS / "explanations" / "guarantees.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def guarantees() -> list[str]:
    """Text of each guarantee: the bullets before the first section."""
    introduction = PAGE.read_text("utf-8").split("\n## ")[0]
    return introduction.split("\n- **")[1:]


@cache
def functions_of(path: str) -> frozenset[str]:
    """Names of the test functions in a file, empty if there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_the_page_lists_the_guarantees() -> None:
    assert len(guarantees()) >= 13


@pytest.mark.parametrize("guarantee", guarantees(), ids=lambda text: text.split("*")[0].rstrip("."))
def test_a_guarantee_names_tests_that_exist(guarantee: str) -> None:
    tests = TEST.findall(guarantee)
    assert tests, "no test is named"
    for path, name in tests:
        assert name in functions_of(path), f"{path} has no {name}"
