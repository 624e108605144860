"""Snapshots of a training run as records: attention over one text, evaluation by evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regard.attention.sites import site_kind, site_layer
from regard.checkpoint.model_dir import folder_task
from regard.errors import UsageError
from regard.pipeline.records.trace_records import Axes
from regard.training.snapshots import AttentionSnapshot, SnapshotText, TrainingSnapshot, load_snapshot, snapshot_steps
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

AXES = {
    "encoder.self": Axes("source", "source"),
    "decoder.cross": Axes("target", "source", is_generated=True),
    "decoder.attention": Axes("target", "source", is_generated=True),
}
SINGLE_TEXT_AXES = {  # of models without a target text
    "encoder.self": Axes("source", "source"),
    "decoder.self": Axes("source", "source", is_causal=True),
}


def training_records(run: str | Path, max_records: int = 0) -> list[Record]:
    """Records of a run's snapshots, in order; with `max_records`, evenly spaced ones with the first and the last."""
    folder = Path(run)
    steps = snapshot_steps(folder)
    if not steps:
        raise UsageError(f"{run}: its training kept no snapshots: only models with attention that are trained here do")
    if max_records and len(steps) > max_records:
        indices = np.linspace(0, len(steps) - 1, max(2, max_records)).round().astype(int)
        steps = [steps[index] for index in dict.fromkeys(indices.tolist())]
    task = folder_task(folder)
    return [snapshot_record(load_snapshot(folder, step), str(run), task) for step in steps]


def snapshot_record(snapshot: TrainingSnapshot, model: str = "", task: str = "translate") -> Record:
    """One snapshot as a record."""
    captured = snapshot.attention
    texts = {"source": _build_text(captured.source)}
    axes_by_kind = SINGLE_TEXT_AXES
    if captured.target is not None:
        texts["target"] = _build_text(captured.target)
        axes_by_kind = AXES
    site_kinds = {site_kind(site) for site in captured.weights}
    attention = [_build_attention(captured, kind, axes) for kind, axes in axes_by_kind.items() if kind in site_kinds]
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in snapshot.metrics.items())
    metadata = {"model": model, "step": snapshot.step, "epoch": snapshot.epoch, "measured": metrics}
    if captured.prediction:
        metadata["output"] = captured.prediction
    return Record(
        f"{captured.source.text} (step {snapshot.step:,})",
        texts,
        tuple(attention),
        task=task,
        provenance=metadata,
        id=f"step-{snapshot.step}",
    )


def _build_text(text: SnapshotText) -> RecordText:
    return RecordText.from_subwords(text.text, text.tokens, text.words)


def _build_attention(captured: AttentionSnapshot, kind: str, axes: Axes) -> AttentionRecord:
    sites = sorted((site for site in captured.weights if site_kind(site) == kind), key=site_layer)
    return AttentionRecord(
        kind,
        axes.rows,
        columns=axes.columns,
        stored=np.stack([captured.weights[site] for site in sites]),
        layers=tuple(site_layer(site) for site in sites),
        is_generated=axes.is_generated,
        is_causal=axes.is_causal,
        has_residual=captured.has_residual[sites[0]],
        num_visible=np.stack([captured.num_visible[site] for site in sites]),
    )


@dataclass
class SnapshotListener:
    """Listener of a run that passes on a record of each evaluation, for a page that is open meanwhile."""

    run: Path
    on_record: Callable[[Record], object]
    task: str = "translate"
    passed_steps: set[int] = field(default_factory=set)

    def on_event(self, event: str, data: dict[str, Any]) -> None:
        """Pass on snapshots since the last event; when a run resumes, also those from before."""
        if event not in ("evaluate", "plan"):
            return
        for step in snapshot_steps(self.run):
            if step not in self.passed_steps:
                self.on_record(snapshot_record(load_snapshot(self.run, step), str(self.run), self.task))
                self.passed_steps.add(step)
