"""Attention snapshots: how a model attends while it learns, on one validation text at every evaluation.

RUN/attention/step-N.json holds the text, the reference that the decoder is forced to, and the attention weights of
every head in half precision, deflated, in base64; some kilobytes. Training does not depend on it.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.attention.trace import Trace
from regard.checkpoint.atomic import json_bytes, make_folder, read_json, write_file
from regard.checkpoint.disk import DISK, Disk
from regard.config.description import has_residual
from regard.errors import CheckpointError
from regard.text.tokenizer import Tokenizer

FOLDER = "attention"
FORMAT = 2
SNAPSHOT_LENGTH = 15  # tokens of a text that suits a figure; the nearest length is chosen
MAX_LENGTH = 64  # tokens; without a text up to this length there are no snapshots
_STEP_FILE = re.compile(r"step-(\d{1,15})\.json")


@dataclass(frozen=True)
class SnapshotText:
    """A source or target text by token, with word ids; -1 for special tokens."""

    text: str
    tokens: list[str]
    words: list[int]  # word id of each token

    @classmethod
    def from_ids(cls, tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> SnapshotText:
        """Build from token ids, special ones included; each token is a word where the text has other tokens."""
        special_ids = tokenizer.special_ids - {tokenizer.unk_id}
        encoding = tokenizer.encode(text)
        ordinary_ids = [token_id for token_id in ids if token_id not in special_ids]
        word_ids = iter(encoding.word_ids if encoding.ids == ordinary_ids else range(len(ordinary_ids)))
        words = [-1 if token_id in special_ids else next(word_ids) for token_id in ids]
        return cls(text, tokenizer.subwords(list(ids)), words)


@dataclass(frozen=True)
class AttentionSnapshot:
    """Attention weights of every head on a source text and, in an encoder–decoder, its reference."""

    source: SnapshotText
    target: SnapshotText | None
    prediction: str  # the model's own output
    weights: Mapping[str, NDArray[np.floating[Any]]]  # site → [heads, queries, keys]
    num_visible: Mapping[str, NDArray[np.int64]]  # site → keys that the mask allows each query, [queries]
    has_residual: Mapping[str, bool]  # site → whether its layers have residual connections

    @classmethod
    def from_trace(
        cls,
        trace: Trace,
        config: object,
        source: SnapshotText,
        target: SnapshotText | None = None,
        prediction: str = "",
    ) -> AttentionSnapshot | None:
        """Take the first row of a trace of a model with this config; None where the trace captured nothing."""
        visible_counts = {site: trace[site].num_visible for site in trace}
        snapshot = cls(
            source,
            target,
            prediction=prediction,
            weights={site: trace[site].weights[0] for site in trace},
            num_visible={site: counts[0, 0] for site, counts in visible_counts.items() if counts is not None},
            has_residual={site: has_residual(config, site) for site in trace},
        )
        return snapshot if snapshot.weights else None

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        sites = {
            site: {
                "shape": list(weights.shape),
                "data": _encode_weights(weights.astype(np.float16)),
                "visible": self.num_visible[site].tolist(),
                "residual": self.has_residual[site],
            }
            for site, weights in self.weights.items()
        }
        target = None if self.target is None else vars(self.target)
        return {"form": FORMAT, "source": vars(self.source), "target": target, "said": self.prediction, "sites": sites}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttentionSnapshot:
        """Build from JSON values."""
        sites = values["sites"]
        target = None if values["target"] is None else SnapshotText(**values["target"])
        return cls(
            SnapshotText(**values["source"]),
            target,
            prediction=values["said"],
            weights={site: _decode_weights(array) for site, array in sites.items()},
            num_visible={site: np.asarray(array["visible"], dtype=np.int64) for site, array in sites.items()},
            has_residual={site: bool(array["residual"]) for site, array in sites.items()},
        )


def _encode_weights(weights: NDArray[np.float16]) -> str:
    return base64.b64encode(zlib.compress(weights.tobytes(), 6)).decode("ascii")


def _decode_weights(array: Mapping[str, Any]) -> NDArray[np.float16]:
    content = zlib.decompress(base64.b64decode(array["data"]))
    return np.frombuffer(content, np.float16).reshape(array["shape"])


@dataclass(frozen=True)
class TrainingSnapshot:
    """Attention and metrics of one evaluation."""

    step: int
    epoch: int
    metrics: dict[str, float]
    attention: AttentionSnapshot


def choose_example(lengths: NDArray[np.int64]) -> int | None:  # [examples, sides]
    """Index of the first example whose length suits a figure best; None where all are too long.

    >>> choose_example(np.array([[3, 3], [13, 15], [15, 16], [40, 41]]))
    1
    """
    longer_sides = lengths.max(axis=1)
    index = int(np.abs(longer_sides - SNAPSHOT_LENGTH).argmin())
    return index if longer_sides[index] <= MAX_LENGTH else None


def save_snapshot(run: Path, snapshot: TrainingSnapshot, disk: Disk = DISK) -> Path:
    """Write a snapshot to a run directory."""
    make_folder(run / FOLDER, disk=disk)
    values = {
        "step": snapshot.step,
        "epoch": snapshot.epoch,
        "metrics": snapshot.metrics,
        **snapshot.attention.to_dict(),
    }
    path = _snapshot_path(run, snapshot.step)
    write_file(path, json_bytes(values), disk=disk)
    return path


def _snapshot_path(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step}.json"


def delete_snapshots_after(run: Path, last_step: int) -> None:
    """Delete the snapshots of later steps, which a resumed run trains again."""
    for step in snapshot_steps(run):
        if step > last_step:
            _snapshot_path(run, step).unlink(missing_ok=True)


def snapshot_steps(run: Path) -> list[int]:
    """Steps of the snapshots in a run directory, in order."""
    folder = run / FOLDER
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    matches = [_STEP_FILE.fullmatch(name) for name in names]
    return sorted(int(match[1]) for match in matches if match)


def load_snapshot(run: Path, step: int) -> TrainingSnapshot:
    """Read the snapshot of a step."""
    path = _snapshot_path(run, step)
    values = read_json(path)
    if values.get("form") != FORMAT:
        raise CheckpointError(f"{path}: format {values.get('form')!r} cannot be read: this version reads {FORMAT}")
    try:
        return TrainingSnapshot(
            int(values["step"]),
            int(values["epoch"]),
            metrics=dict(values["metrics"]),
            attention=AttentionSnapshot.from_dict(values),
        )
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise CheckpointError(f"{path}: damaged ({error}): remove it") from None
