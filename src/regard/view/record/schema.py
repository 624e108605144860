"""The record's JSON form: one schema for page, file, notebook, figure and terminal.

```
{ "regard": 1, "id", "title", "task": "translate|classify|tag|answer|stories|fill|embed|generate|see",
  "made":   { "version", "model", "when", … },
  "texts":  { "source": { "text", "lang", "dir": "auto|ltr|rtl", "tokens": [str], "span": [[start, end]], "word": [int],
                          "special": [bool], "segment": [int] }, "target": { … } },
  "attention": [ { "name", "rows": side, "cols": side, "rowmeans": "token|produced", "causal": bool,
                   "layers": [int], "heads": int,
                   "blocks": [ { "layer", "heads": [int], "shape": [heads, Q, K], "code": "root8|f16|sparse",
                                 "data" | "href" } ],      # one matrix is at href + "/" + head
                   "thumbs": { "size": [rows, columns], "data" },               # root8 [layers, heads, rows, columns]
                   "stats": { "entropy", "distance", "special", "label" },      # each [layers][heads]
                   "importance": { "metric", "by": [layers][heads] } | null } ],
  "inside": [ { "attention", "layer", "head", "q", "k", "v", "scores": { "shape", "code": "f16", "data" } } ],
  "steps":  [ { "token", "p", "entropy", "top": [[str, p]], "beams": [[parent, token, score]] } ],
  "verdict": { "labels", "p" } | { "start", "end", "answers": [[first, last, text, score]], "none" } | null,
  "attribution": [ { "method", "of", "side", "values", "agreement" } ],
  "places": { "kind", "shape", "data" } | null,                                 # f16
  "cut":    [ { "why", "dropped" } ],
  "view":   { "attn", "layer", "head", "measured": bool, … } }
```

Sides beside source and target: `given` (what a decoder had read when it produced the token of each row), `question` and
`memory` (a hop looks at sentences), `label` (what a text was pooled for), `mix` and `layers` (shares of frozen layers).
A layer may stand in several blocks, of different heads and codes; a head that stands in none has its thumb only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.errors import UsageError
from regard.view.codec import array_from_json, encode_root8, encode_sparse
from regard.view.record.attention import AttentionRecord
from regard.view.record.head_stats import summarize_heads
from regard.view.record.parts import Attribution, DecodingStep, HeadQKV, Omission, PositionCodes, prediction_from_dict
from regard.view.record.texts import RecordText

if TYPE_CHECKING:
    from regard.view.record.record import Record


SCHEMA = 1
_NEEDED = {"title": str, "texts": Mapping, "attention": Sequence}
_NEEDED_OF_ATTENTION = ("name", "rows", "cols", "rowmeans", "layers", "heads", "blocks")


def record_to_dict(record: Record, full: bool | Collection[int], href: str) -> dict[str, Any]:
    """Return a record as plain values; layers not in `full` are sparse; with `href` matrices are only pointed at."""
    made = {
        "regard": SCHEMA,
        "id": record.id,
        "title": record.title,
        "task": record.task,
        "made": dict(record.made),
        "texts": {name: side.to_dict() for name, side in record.texts.items()},
        "attention": [
            attention_to_dict(seen, record.texts[seen.columns].special, full, href) for seen in record.attention
        ],
        "inside": [one.to_dict() for one in record.inside],
        "steps": [step.to_dict() for step in record.steps],
        "verdict": None if record.verdict is None else record.verdict.to_dict(),
        "attribution": [one.to_dict() for one in record.attribution],
        "places": None if record.places is None else record.places.to_dict(),
        "cut": [cut.to_dict() for cut in record.cut],
    }
    first = (record.attention[0].name, record.attention[0].layers[-1], 0) if record.attention else ("", 0, 0)
    name, layer, head = record.best or first
    shown = {"attn": name, "layer": layer, "head": head, "measured": record.best is not None}
    return {**made, "view": {**shown, **record.view}}


def attention_to_dict(
    seen: AttentionRecord, special: Sequence[bool], full: bool | Collection[int], href: str
) -> dict[str, Any]:
    """Return one attention as plain values."""
    return {
        "name": seen.name,
        "rows": seen.rows,
        "cols": seen.columns,
        "rowmeans": "produced" if seen.produced else "token",
        "causal": seen.causal,
        "layers": list(seen.layers),
        "heads": seen.heads,
        "blocks": [_block(seen, layer, full, href) for layer in seen.layers],
        **summarize_heads(seen, special),
        "importance": None if seen.importance is None else dict(seen.importance),
    }


def _block(seen: AttentionRecord, layer: int, full: bool | Collection[int], href: str) -> dict[str, Any]:
    made = {"layer": layer, "heads": list(range(seen.heads)), "shape": list(seen.shape[1:])}
    if href:
        return {**made, "code": "root8", "href": f"{href}/{seen.name}/{layer}"}
    weights = np.stack([seen.matrix(layer, head) for head in range(seen.heads)])
    if full if isinstance(full, bool) else layer in full:
        return {**made, "code": "root8", "data": encode_root8(weights)}
    return {**made, "code": "sparse", "data": encode_sparse(weights)}


def record_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record is made of, read from its JSON form; what is wrong with that is said in one message."""
    _check(values)
    try:
        view = dict(values.get("view") or {})
        is_measured = bool(view.pop("measured", False))
        shown = (view.pop("attn", ""), view.pop("layer", 0), view.pop("head", 0))
        verdict, places = values.get("verdict"), values.get("places")
        return {
            "title": values["title"],
            "texts": {name: RecordText.from_dict(side) for name, side in values["texts"].items()},
            "attention": tuple(_attention_from_dict(one) for one in values["attention"]),
            "task": values.get("task", "translate"),
            "made": dict(values.get("made") or {}),
            "best": shown if is_measured else None,
            "id": values.get("id", ""),
            "steps": tuple(DecodingStep.from_dict(one) for one in values.get("steps") or ()),
            "verdict": prediction_from_dict(verdict) if verdict else None,
            "attribution": tuple(Attribution.from_dict(one) for one in values.get("attribution") or ()),
            "places": PositionCodes.from_dict(places) if places else None,
            "inside": tuple(HeadQKV.from_dict(one) for one in values.get("inside") or ()),
            "cut": tuple(Omission.from_dict(one) for one in values.get("cut") or ()),
            "view": view,
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"the record {values.get('title')!r:.60} cannot be read: {what}") from error


def _check(values: Mapping[str, Any]) -> None:
    version = values.get("regard") if isinstance(values, Mapping) else None
    if version != SCHEMA:
        newer = isinstance(version, int) and version > SCHEMA
        what = "it was made by a newer Regard: update this one" if newer else "it is no record"
        raise UsageError(f"a record of schema {version!r} cannot be read: this version reads {SCHEMA}; {what}")
    for name, kind in _NEEDED.items():
        if not isinstance(values.get(name), kind):
            raise UsageError(f"a record needs {name!r}, but it has {values.get(name)!r:.40} there")


def _attention_from_dict(one: Mapping[str, Any]) -> AttentionRecord:
    for name in _NEEDED_OF_ATTENTION:
        if name not in one:
            raise UsageError(f"attention {one.get('name')!r} of a record lacks {name!r}")
    layers, blocks = list(one["layers"]), one["blocks"]
    if any("data" not in block for block in blocks):
        raise UsageError(f"{one['name']}: its weights are at a server and not in the record: save it from there")
    size = blocks[0]["shape"][1:] if blocks else [0, 0]
    weights = np.zeros((len(layers), one["heads"], *size), dtype=np.float32)
    for block in blocks:
        heads = block["heads"] if isinstance(block.get("heads"), list) else range(one["heads"])
        weights[layers.index(block["layer"]), list(heads)] = array_from_json(block)
    return AttentionRecord(
        one["name"],
        one["rows"],
        one["cols"],
        weights,
        tuple(layers),
        one["rowmeans"] == "produced",
        bool(one.get("causal", False)),
        one.get("importance"),
    )
