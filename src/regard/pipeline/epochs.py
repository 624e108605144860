"""A training's moments as records: where a model looked at one text, evaluation by evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regard.attention.sites import kind_of, layer_of
from regard.checkpoint.folder import task_of
from regard.errors import UsageError
from regard.pipeline.gathering import Axes
from regard.training.looked import Looked, Moment, Shown, moment_steps, read_moment
from regard.view.record import Attention, Record, Side

AXES = {
    "encoder.self": Axes("source", "source"),
    "decoder.cross": Axes("target", "source", produced=True),
    "decoder.attention": Axes("target", "source", produced=True),
}
ALONE = {"encoder.self": AXES["encoder.self"], "decoder.self": Axes("source", "source", causal=True)}  # one text


def epoch_records(run: str | Path, most: int = 0) -> list[Record]:
    """Return what was seen at each evaluation of a run's training, in order; with `most`, so many of them at most.

    The first and the last are always among them.
    """
    folder = Path(run)
    steps = moment_steps(folder)
    if not steps:
        raise UsageError(f"{run}: its training kept no pictures: models with attention that are trained here do")
    if most and len(steps) > most:
        chosen = np.linspace(0, len(steps) - 1, max(2, most)).round().astype(int)
        steps = [steps[place] for place in dict.fromkeys(chosen.tolist())]
    task = task_of(folder)
    return [moment_record(read_moment(folder, step), str(run), task) for step in steps]


def moment_record(moment: Moment, model: str = "", task: str = "translate") -> Record:
    """Return one moment as a record."""
    looked = moment.looked
    sides = {"source": _side(looked.source)}
    if looked.target is not None:
        sides["target"] = _side(looked.target)
    attention = tuple(
        _attention(looked, kind, axes)
        for kind, axes in (ALONE if looked.target is None else AXES).items()
        if any(kind_of(site) == kind for site in looked.weights)
    )
    measured = ", ".join(f"{name} {value:.4g}" for name, value in moment.metrics.items())
    made = {"model": model, "step": moment.step, "epoch": moment.epoch, "measured": measured}
    if looked.said:
        made["said"] = looked.said
    title = f"{looked.source.text} (step {moment.step:,})"
    return Record(title, sides, attention, task=task, made=made, id=f"step-{moment.step}")


def _side(shown: Shown) -> Side:
    return Side.of_pieces(shown.text, shown.tokens, shown.words)


def _attention(looked: Looked, kind: str, axes: Axes) -> Attention:
    sites = sorted((site for site in looked.weights if kind_of(site) == kind), key=layer_of)
    weights = np.stack([looked.weights[site] for site in sites])
    numbers = tuple(map(layer_of, sites))
    return Attention(kind, axes.rows, axes.columns, weights, numbers, axes.produced, axes.causal)


@dataclass
class EpochWatcher:
    """A watcher of a training that hands on a record of each evaluation, for a page that is open meanwhile."""

    run: Path
    put: Callable[[Record], object]
    task: str = "translate"
    known: set[int] = field(default_factory=set)

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Hand on what was seen since the last event; when a run goes on, what it has seen before too."""
        if kind not in ("evaluate", "plan"):
            return
        for step in moment_steps(self.run):
            if step not in self.known:
                self.put(moment_record(read_moment(self.run, step), str(self.run), self.task))
                self.known.add(step)
