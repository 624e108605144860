"""A record to its JSON form and back: one form for page, file, notebook, figure and terminal (`json_form.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.errors import UsageError
from regard.view.codec import array_from_json, encode_root8, encode_sparse
from regard.view.record.attention import AttentionRecord
from regard.view.record.head_stats import summarize_heads
from regard.view.record.json_form import AttentionDict, BlockDict, ImportanceDict, RecordDict
from regard.view.record.parts import (
    Attribution,
    DecodingStep,
    HeadQKV,
    Omission,
    PositionEncodings,
    prediction_from_dict,
)
from regard.view.record.texts import RecordText

if TYPE_CHECKING:
    from regard.view.record.record import Record


SCHEMA = 3
_REQUIRED_FIELDS = {"title": str, "texts": Mapping, "attention": Sequence}
_REQUIRED_ATTENTION_FIELDS = ("name", "rows", "columns", "row_meaning", "layers", "heads", "blocks")


def record_to_dict(record: Record, full: bool | Collection[int], href: str) -> RecordDict:
    """Convert a record to plain values; layers not in `full` are sparse; `href` replaces matrices by references."""
    default_head = (record.attention[0].name, record.attention[0].layers[-1], 0) if record.attention else ("", 0, 0)
    name, layer, head = record.best or default_head
    view = {"attention": name, "layer": layer, "head": head}
    best = dict(view) if record.best else None  # the view may open with other heads
    return {
        "regard": SCHEMA,
        "id": record.id,
        "title": record.title,
        "task": record.task,
        "provenance": dict(record.provenance),
        "texts": {name: text.to_dict() for name, text in record.texts.items()},
        "attention": [
            attention_to_dict(attention, record.texts[attention.columns].special, full, href)
            for attention in record.attention
        ],
        "qkv": [head.to_dict() for head in record.qkv],
        "steps": [step.to_dict() for step in record.steps],
        "prediction": None if record.prediction is None else record.prediction.to_dict(),
        "attribution": [attribution.to_dict() for attribution in record.attribution],
        "positions": None if record.positions is None else record.positions.to_dict(),
        "omissions": [omission.to_dict() for omission in record.omissions],
        "view": {**view, **record.view, "best": best},
    }


def attention_to_dict(
    attention: AttentionRecord, special: Sequence[bool], full: bool | Collection[int], href: str
) -> AttentionDict:
    """Convert the attention of one kind of site to plain values."""
    summary = summarize_heads(attention, special)
    return {
        "name": attention.name,
        "rows": attention.rows,
        "columns": attention.columns,
        "row_meaning": "generated" if attention.is_generated else "token",
        "causal": attention.is_causal,
        "residual": attention.has_residual,
        "visible": None if attention.num_visible is None else attention.num_visible.tolist(),
        "layers": list(attention.layers),
        "heads": attention.num_heads,
        "blocks": [_encode_layer(attention, layer, full, href) for layer in attention.layers],
        "thumbs": summary["thumbs"],
        "stats": summary["stats"],
        "importance": None if attention.importance is None else importance_to_dict(attention.importance),
    }


def importance_to_dict(importance: Mapping[str, Any]) -> ImportanceDict:
    """Convert the importance of all heads to plain values."""
    return {"metric": importance["metric"], "values": importance["values"]}


def _encode_layer(attention: AttentionRecord, layer: int, full: bool | Collection[int], href: str) -> BlockDict:
    block: BlockDict = {
        "layer": layer,
        "heads": list(range(attention.num_heads)),
        "shape": list(attention.shape[1:]),
        "codec": "root8",
    }
    if href:
        return {**block, "href": f"{href}/{attention.name}/{layer}"}
    weights = np.stack([attention.matrix(layer, head) for head in range(attention.num_heads)])
    is_full = full if isinstance(full, bool) else layer in full
    if is_full:
        return {**block, "data": encode_root8(weights)}
    return {**block, "codec": "sparse", "data": encode_sparse(weights)}


def record_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields of a record from its JSON form; a fault raises one message."""
    _check(values)
    try:
        view = dict(values.get("view") or {})
        best = view.pop("best", None)
        if "heads" not in view:  # the default
            for name in ("attention", "layer", "head"):
                view.pop(name, None)
        prediction = values.get("prediction")
        positions = values.get("positions")
        return {
            "title": values["title"],
            "texts": {name: RecordText.from_dict(text) for name, text in values["texts"].items()},
            "attention": tuple(map(_attention_from_dict, values["attention"])),
            "task": values.get("task", "translate"),
            "provenance": dict(values.get("provenance") or {}),
            "best": (best["attention"], best["layer"], best["head"]) if best else None,
            "id": values.get("id", ""),
            "steps": tuple(map(DecodingStep.from_dict, values.get("steps") or ())),
            "prediction": prediction_from_dict(prediction) if prediction else None,
            "attribution": tuple(map(Attribution.from_dict, values.get("attribution") or ())),
            "positions": PositionEncodings.from_dict(positions) if positions else None,
            "qkv": tuple(map(HeadQKV.from_dict, values.get("qkv") or ())),
            "omissions": tuple(map(Omission.from_dict, values.get("omissions") or ())),
            "view": view,
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"the record {values.get('title')!r:.60} cannot be read: {reason}") from error


def _check(values: Mapping[str, Any]) -> None:
    version = values.get("regard") if isinstance(values, Mapping) else None
    if version != SCHEMA:
        advice = "it is not a record"
        if isinstance(version, int):
            is_newer = version > SCHEMA
            advice = "it was written by "
            advice += "a newer Regard: update this one" if is_newer else "an earlier Regard: record the text again"
        raise UsageError(f"a record of schema {version!r} cannot be read: this version reads {SCHEMA}; {advice}")
    for name, kind in _REQUIRED_FIELDS.items():
        if not isinstance(values.get(name), kind):
            raise UsageError(f"a record needs {name!r}, not {values.get(name)!r:.40}")


def _attention_from_dict(values: Mapping[str, Any]) -> AttentionRecord:
    for name in _REQUIRED_ATTENTION_FIELDS:
        if name not in values:
            raise UsageError(f"attention {values.get('name')!r} of a record lacks {name!r}")
    layers = list(values["layers"])
    blocks = values["blocks"]
    if any("data" not in block for block in blocks):
        raise UsageError(f"{values['name']}: the weights are on a server, not in the record: save it from there")
    size = blocks[0]["shape"][1:] if blocks else [0, 0]
    weights = np.zeros((len(layers), values["heads"], *size), dtype=np.float32)
    for block in blocks:
        heads = block["heads"] if isinstance(block.get("heads"), list) else range(values["heads"])
        weights[layers.index(block["layer"]), list(heads)] = array_from_json(block)
    return AttentionRecord(
        values["name"],
        values["rows"],
        columns=values["columns"],
        stored=weights,
        layers=tuple(layers),
        is_generated=values["row_meaning"] == "generated",
        is_causal=bool(values.get("causal", False)),
        has_residual=bool(values.get("residual", True)),
        num_visible=None if values.get("visible") is None else np.asarray(values["visible"], dtype=np.int64),
        importance=values.get("importance"),
    )
