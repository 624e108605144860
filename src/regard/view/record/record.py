"""The record: texts, attention and everything else that was seen of one answer, the only thing that views know.

A record is made of plain text and NumPy arrays; its JSON form is drawn in `schema.py`, how arrays stand in it in
`codes.py`. The parts are in `record_text.py`, `record_attention.py` and `record_parts.py`, and can be imported here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import UsageError, nearest
from regard.view.codec import Weights
from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import (
    Attribution,
    DecodingStep,
    HeadQKV,
    LabelProbabilities,
    Omission,
    PositionCodes,
    SpanProbabilities,
)
from regard.view.record.schema import record_parts, record_to_dict
from regard.view.record.texts import RecordText

LARGEST = 2**30  # bytes of a record's file


@dataclass(frozen=True)
class Record:
    """One answer and where each head looked while giving it."""

    title: str
    texts: Mapping[str, RecordText]  # source, target, …
    attention: tuple[AttentionRecord, ...]
    task: str = "translate"
    made: Mapping[str, Any] = field(default_factory=dict)  # version, model, when, …
    best: tuple[str, int, int] | None = None  # (attention name, layer, head) that a view opens with
    id: str = ""  # made of the content where it is not given
    steps: tuple[DecodingStep, ...] = ()  # one for each token of the side `target`, where tokens were produced
    verdict: LabelProbabilities | SpanProbabilities | None = None
    attribution: tuple[Attribution, ...] = ()
    places: PositionCodes | None = None
    inside: tuple[HeadQKV, ...] = ()
    cut: tuple[Omission, ...] = ()  # what was left out
    view: Mapping[str, Any] = field(default_factory=dict)  # the state that the page opens with

    def __post_init__(self) -> None:
        for seen in self.attention:
            for side in (seen.rows, seen.columns):
                if side not in self.texts:
                    raise UsageError(f"{seen.name}: the record has no text {side!r}: it has {', '.join(self.texts)}")
            need = (len(self.texts[seen.rows].tokens), len(self.texts[seen.columns].tokens))
            if seen.shape[2:] != need:
                raise UsageError(f"{seen.name}: weights {seen.shape} do not fit the tokens {need}")
        if not self.id:
            sides = [side.to_dict() for side in self.texts.values()]
            said = json.dumps([self.title, self.task, sides, dict(self.made)], default=str)
            object.__setattr__(self, "id", hashlib.sha256(said.encode()).hexdigest()[:12])

    def __getitem__(self, name: str) -> AttentionRecord:
        """Return the attention of this name; of `encoder.3.self` that of `encoder.self`."""
        plain = ".".join(part for part in name.partition(":")[0].split(".") if not part.isdigit())
        for wanted in (name, plain):
            for seen in self.attention:
                if seen.name == wanted:
                    return seen
        names = [seen.name for seen in self.attention]
        known = f"it has {', '.join(names)}" if names else "it has no attention"
        raise UsageError(f"the record has no {name}: {known}{nearest(plain, names)}")

    def head(self, name: str = "", layer: int = -1, head: int = -1) -> tuple[AttentionRecord, Weights]:
        """Return an attention and one head's weights [Q, K]; by default the best head, else the last layer's mean."""
        if self.best and not name:
            name, layer, head = self.best
        seen = self[name] if name or not self.attention else self.attention[0]
        chosen = layer if layer >= 0 else seen.layers[-1]
        if head >= 0:
            return seen, seen.matrix(chosen, head)
        every = [seen.matrix(chosen, number) for number in range(seen.heads)]
        return seen, np.asarray(np.mean(every, axis=0))

    def to_dict(self, full: bool | Collection[int] = True, *, href: str = "") -> dict[str, Any]:
        """Return the record's JSON form: all weights, or those of these layers and the largest of the others.

        With `href` it has no matrices: that of a head is to be found at `<href>/<attention>/<layer>/<head>`.
        """
        return record_to_dict(self, full, href)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """Return the record read from its JSON form; weights come back to within 1/255 of their root."""
        return cls(**record_parts(values))

    def save(self, path: str | Path, full: bool | Collection[int] = True) -> Path:
        """Write the record's JSON form to a file and return its path."""
        from regard.checkpoint.atomic import write_file

        text = json.dumps(self.to_dict(full), ensure_ascii=False, separators=(",", ":"))
        write_file(Path(path), text.encode("utf-8", "surrogatepass"))
        return Path(path)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return what a notebook shows of the record."""
        from regard.view.notebook import NotebookOutput

        return NotebookOutput(self)._repr_mimebundle_()

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """Return the record of a file that `save` wrote."""
        from regard.checkpoint.atomic import read_bytes

        try:
            values = json.loads(read_bytes(Path(path), max_bytes=LARGEST).decode("utf-8", "surrogatepass"))
        except ValueError as error:
            raise UsageError(f"{path}: no record: it is not JSON ({error})") from error
        try:
            return cls.from_dict(values)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
