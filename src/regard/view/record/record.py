"""The record of one prediction: texts, attention and everything else that a view shows.

Views know nothing but records. A record holds plain text and NumPy arrays; `schema.py` describes its JSON form and
`view/codec.py` how arrays are encoded in it.
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
from regard.view.record.json_form import RecordDict
from regard.view.record.parts import (
    Attribution,
    DecodingStep,
    HeadQKV,
    LabelProbabilities,
    Omission,
    PositionEncodings,
    SpanProbabilities,
)
from regard.view.record.schema import record_parts, record_to_dict
from regard.view.record.texts import RecordText

MAX_FILE_BYTES = 2**30


@dataclass(frozen=True)
class Record:
    """One prediction and the attention of every head that computed it."""

    title: str
    texts: Mapping[str, RecordText]  # source, target, …
    attention: tuple[AttentionRecord, ...]
    task: str = "translate"
    provenance: Mapping[str, Any] = field(default_factory=dict)  # version, model, time, …
    best: tuple[str, int, int] | None = None  # (attention name, layer, head) that views show first
    id: str = ""  # derived from the content by default
    steps: tuple[DecodingStep, ...] = ()  # one per generated token of the text `target`
    prediction: LabelProbabilities | SpanProbabilities | None = None
    attribution: tuple[Attribution, ...] = ()
    positions: PositionEncodings | None = None
    qkv: tuple[HeadQKV, ...] = ()
    omissions: tuple[Omission, ...] = ()
    view: Mapping[str, Any] = field(default_factory=dict)  # initial state of the page

    def __post_init__(self) -> None:
        for attention in self.attention:
            self._check_shape(attention)
        if not self.id:
            texts = [text.to_dict() for text in self.texts.values()]
            content = json.dumps([self.title, self.task, texts, dict(self.provenance)], default=str)
            object.__setattr__(self, "id", hashlib.sha256(content.encode()).hexdigest()[:12])

    def _check_shape(self, attention: AttentionRecord) -> None:
        for name in (attention.rows, attention.columns):
            if name not in self.texts:
                raise UsageError(f"{attention.name}: the record has no text {name!r}: it has {', '.join(self.texts)}")
        num_rows = len(self.texts[attention.rows].tokens)
        num_columns = len(self.texts[attention.columns].tokens)
        if attention.shape[2:] != (num_rows, num_columns):
            raise UsageError(
                f"{attention.name}: weights of shape {attention.shape} do not match {num_rows} query and {num_columns} "
                "key tokens"
            )

    def __getitem__(self, name: str) -> AttentionRecord:
        """Look up attention by name; a site such as `encoder.3.self:2` finds `encoder.self`."""
        site_kind = ".".join(part for part in name.partition(":")[0].split(".") if not part.isdigit())
        for candidate in (name, site_kind):
            for attention in self.attention:
                if attention.name == candidate:
                    return attention
        names = [attention.name for attention in self.attention]
        available = f"it has {', '.join(names)}" if names else "it has no attention"
        raise UsageError(f"the record has no {name}: {available}{nearest(site_kind, names)}")

    def head(self, name: str = "", layer: int = -1, head: int = -1) -> tuple[AttentionRecord, Weights]:
        """One head's weights [Q, K] with their attention; by default the best head, else the mean of the last layer."""
        if self.best and not name:
            name, layer, head = self.best
        attention = self[name] if name or not self.attention else self.attention[0]
        if layer < 0:
            layer = attention.layers[-1]
        if head >= 0:
            return attention, attention.matrix(layer, head)
        heads = [attention.matrix(layer, index) for index in range(attention.num_heads)]
        return attention, np.asarray(np.mean(heads, axis=0))

    def to_dict(self, full: bool | Collection[int] = True, *, href: str = "") -> RecordDict:
        """Convert to the JSON form: all weights, or all of the layers in `full` and the largest of the others.

        With `href` matrices are left out: that of a head is at `<href>/<attention>/<layer>/<head>`.
        """
        return record_to_dict(self, full, href)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """Read the JSON form; the square root of each weight is restored to within 1/255."""
        return cls(**record_parts(values))

    def save(self, path: str | Path, full: bool | Collection[int] = True) -> Path:
        """Write the JSON form to a file and return its path."""
        from regard.checkpoint.atomic import write_file

        text = json.dumps(self.to_dict(full), ensure_ascii=False, separators=(",", ":"))
        write_file(Path(path), text.encode("utf-8", "surrogatepass"))
        return Path(path)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook displays."""
        from regard.view.notebook import NotebookOutput

        return NotebookOutput(self)._repr_mimebundle_()

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """Read a file written by `save`."""
        from regard.checkpoint.atomic import read_bytes

        try:
            values = json.loads(read_bytes(Path(path), max_bytes=MAX_FILE_BYTES).decode("utf-8", "surrogatepass"))
        except ValueError as error:
            raise UsageError(f"{path}: not a record: it is not JSON ({error})") from error
        try:
            return cls.from_dict(values)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
