"""Where a model looks while it learns: one text of the validation data, the same at every evaluation.

RUN/attention/step-N.json has the text, what was to be written for it, and the weights of every head while that was read
and written, in half precision, deflated and in base64; some kilobytes. Training depends on none of it.
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
from regard.errors import CheckpointError
from regard.text.tokenizer import Tokenizer

FOLDER = "attention"
FORM = 1
LENGTH = 15  # tokens that the shown text has, or about so many
MOST = 64  # tokens from which on there is no picture
_STEP = re.compile(r"step-(\d{1,15})\.json")


@dataclass(frozen=True)
class SnapshotText:
    """A text as it was read or written, token by token; words are numbered, special tokens have -1."""

    text: str
    tokens: list[str]
    words: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> SnapshotText:
        """Return the tokens `ids` of a text, special ones among them; each is a word where the text has others."""
        special, found = tokenizer.special_ids - {tokenizer.unk_id}, tokenizer.encode(text)
        ordinary = [number for number in ids if number not in special]
        words = iter(found.word_ids if found.ids == ordinary else range(len(ordinary)))
        return cls(text, tokenizer.subwords(list(ids)), [-1 if number in special else next(words) for number in ids])


@dataclass(frozen=True)
class AttentionSnapshot:
    """Where every head looked while a model read a text, and was made to write another where it writes."""

    source: SnapshotText
    target: SnapshotText | None
    prediction: str  # what the model itself says
    weights: Mapping[str, NDArray[np.floating[Any]]]  # site → [H, Q, K]

    @classmethod
    def from_trace(
        cls, trace: Trace, source: SnapshotText, target: SnapshotText | None = None, prediction: str = ""
    ) -> AttentionSnapshot | None:
        """Return what a trace saw of the first row; nothing where nothing was seen."""
        weights = {site: trace[site].weights[0] for site in trace}
        return cls(source, target, prediction, weights) if weights else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        sites = {
            site: {"shape": list(one.shape), "data": _packed(one.astype(np.float16))}
            for site, one in self.weights.items()
        }
        target = None if self.target is None else vars(self.target)
        return {"form": FORM, "source": vars(self.source), "target": target, "said": self.prediction, "sites": sites}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttentionSnapshot:
        """Return it from plain values."""
        weights = {
            site: np.frombuffer(zlib.decompress(base64.b64decode(one["data"])), np.float16).reshape(one["shape"])
            for site, one in values["sites"].items()
        }
        target = None if values["target"] is None else SnapshotText(**values["target"])
        return cls(SnapshotText(**values["source"]), target, values["said"], weights)


def _packed(values: NDArray[np.float16]) -> str:
    return base64.b64encode(zlib.compress(values.tobytes(), 6)).decode("ascii")


@dataclass(frozen=True)
class TrainingSnapshot:
    """Where a model looked after so many steps, and how good it was."""

    step: int
    epoch: int
    metrics: dict[str, float]
    attention: AttentionSnapshot


def choose_example(lengths: NDArray[np.int64]) -> int | None:
    """Return the number of the first example of about the length that pictures are good for, [examples, sides].

    >>> choose_example(np.array([[3, 3], [13, 15], [15, 16], [40, 41]]))
    1
    """
    longest = lengths.max(axis=1)
    found = int(np.abs(longest - LENGTH).argmin())
    return found if longest[found] <= MOST else None


def save_snapshot(run: Path, snapshot: TrainingSnapshot, disk: Disk = DISK) -> Path:
    """Write a moment into a run's folder."""
    folder = run / FOLDER
    make_folder(folder, disk=disk)
    facts = {
        "step": snapshot.step,
        "epoch": snapshot.epoch,
        "metrics": snapshot.metrics,
        **snapshot.attention.to_dict(),
    }
    place = folder / f"step-{snapshot.step}.json"
    write_file(place, json_bytes(facts), disk=disk)
    return place


def delete_snapshots_after(run: Path, last_step: int) -> None:
    """Remove the moments after a step, from which training goes on."""
    for step in snapshot_steps(run):
        if step > last_step:
            (run / FOLDER / f"step-{step}.json").unlink(missing_ok=True)


def snapshot_steps(run: Path) -> list[int]:
    """Return the steps whose moments a run's folder has, in order."""
    folder = run / FOLDER
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(found[1]) for found in map(_STEP.fullmatch, names) if found)


def load_snapshot(run: Path, step: int) -> TrainingSnapshot:
    """Return the moment of a step."""
    path = run / FOLDER / f"step-{step}.json"
    facts = read_json(path)
    if facts.get("form") != FORM:
        raise CheckpointError(f"{path}: form {facts.get('form')!r} cannot be read: this version reads {FORM}")
    try:
        return TrainingSnapshot(
            int(facts["step"]), int(facts["epoch"]), dict(facts["metrics"]), AttentionSnapshot.from_dict(facts)
        )
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise CheckpointError(f"{path}: damaged ({error}): remove it") from None
