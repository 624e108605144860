"""Training: the same batches for everybody who lets us give batches; the rest cut their own from the same pairs."""

from __future__ import annotations

from dataclasses import asdict

from regard.bench import cost, work
from regard.bench.measure import Task
from regard.bench.settings import Size


def facts(size: Size) -> dict[str, object]:
    """Return what contestants need to know."""
    return {"size": asdict(size), "lengths": work.training_lengths(size.batch_tokens, size.steps)}


def tasks(size: Size, given: dict[str, object]) -> list[Task]:
    """Return what is measured: target tokens a second through forwards, backwards and update."""
    per_token = cost.training(size, given["lengths"])  # type: ignore[arg-type]
    return [Task("training", f"training {size.name}", "target tokens/s", tokens=1.0, work=per_token)]
