"""Encoding: texts of mixed length in, one vector each out, tokenisation included."""

from __future__ import annotations

from dataclasses import asdict

from regard.bench import cost, work
from regard.bench.measure import Task
from regard.bench.settings import ReadSize


def facts(size: ReadSize) -> dict[str, object]:
    """Return what contestants need to know."""
    return {"size": asdict(size), "lengths": work.text_lengths(size.texts, seed=5).tolist()}


def tasks(size: ReadSize, given: dict[str, object]) -> list[Task]:
    """Return what is measured: texts a second."""
    lengths: list[int] = given["lengths"]  # type: ignore[assignment]
    tokens = sum(length + 2 for length in lengths) / len(lengths)
    return [Task("encoding", f"encoding {size.name}", "texts/s", tokens=tokens, work=cost.encoding(size, lengths))]
