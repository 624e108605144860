"""A training's moments as records: where a model looked at one text, evaluation by evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regard.attention.sites import site_kind, site_layer
from regard.checkpoint.model_dir import folder_task
from regard.errors import UsageError
from regard.pipeline.records.attention import Axes
from regard.training.snapshots import AttentionSnapshot, SnapshotText, TrainingSnapshot, load_snapshot, snapshot_steps
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

AXES = {
    "encoder.self": Axes("source", "source"),
    "decoder.cross": Axes("target", "source", produced=True),
    "decoder.attention": Axes("target", "source", produced=True),
}
ALONE = {"encoder.self": AXES["encoder.self"], "decoder.self": Axes("source", "source", causal=True)}  # one text


def training_records(run: str | Path, max_records: int = 0) -> list[Record]:
    """Return what was seen at each evaluation of a run's training, in order; with `most`, so many of them at most.

    The first and the last are always among them.
    """
    folder = Path(run)
    steps = snapshot_steps(folder)
    if not steps:
        raise UsageError(f"{run}: its training kept no pictures: models with attention that are trained here do")
    if max_records and len(steps) > max_records:
        chosen = np.linspace(0, len(steps) - 1, max(2, max_records)).round().astype(int)
        steps = [steps[place] for place in dict.fromkeys(chosen.tolist())]
    task = folder_task(folder)
    return [snapshot_record(load_snapshot(folder, step), str(run), task) for step in steps]


def snapshot_record(snapshot: TrainingSnapshot, model: str = "", task: str = "translate") -> Record:
    """Return one moment as a record."""
    looked = snapshot.attention
    sides = {"source": _side(looked.source)}
    if looked.target is not None:
        sides["target"] = _side(looked.target)
    attention = tuple(
        _attention(looked, kind, axes)
        for kind, axes in (ALONE if looked.target is None else AXES).items()
        if any(site_kind(site) == kind for site in looked.weights)
    )
    measured = ", ".join(f"{name} {value:.4g}" for name, value in snapshot.metrics.items())
    made = {"model": model, "step": snapshot.step, "epoch": snapshot.epoch, "measured": measured}
    if looked.prediction:
        made["said"] = looked.prediction
    title = f"{looked.source.text} (step {snapshot.step:,})"
    return Record(title, sides, attention, task=task, made=made, id=f"step-{snapshot.step}")


def _side(shown: SnapshotText) -> RecordText:
    return RecordText.from_subwords(shown.text, shown.tokens, shown.words)


def _attention(looked: AttentionSnapshot, kind: str, axes: Axes) -> AttentionRecord:
    sites = sorted((site for site in looked.weights if site_kind(site) == kind), key=site_layer)
    weights = np.stack([looked.weights[site] for site in sites])
    numbers = tuple(map(site_layer, sites))
    return AttentionRecord(kind, axes.rows, axes.columns, weights, numbers, axes.produced, axes.causal)


@dataclass
class SnapshotListener:
    """A watcher of a training that hands on a record of each evaluation, for a page that is open meanwhile."""

    run: Path
    put: Callable[[Record], object]
    task: str = "translate"
    known: set[int] = field(default_factory=set)

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        """Hand on what was seen since the last event; when a run goes on, what it has seen before too."""
        if kind not in ("evaluate", "plan"):
            return
        for step in snapshot_steps(self.run):
            if step not in self.known:
                self.put(snapshot_record(load_snapshot(self.run, step), str(self.run), self.task))
                self.known.add(step)
