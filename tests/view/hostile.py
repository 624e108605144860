"""Hostile strings: markup, scripts, escape sequences, control characters, and records in which every text is one."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice

from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from tests.view.samples import distributions, whole_record

_PAYLOADS = [
    "</script><script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    "\"'><svg onload=window.owned=1>",
    "{{script}} {{data}} {{title}}",
    "<!--<script>",
    "]]><b>bold</b>",
    "javascript:window.owned=1",
    "\u202eevil\u202c \u2066isolated\u2069 \u200e\u200f",
    "\u2028\u2029line\u0085ends",
    "\\u003cscript\\u003ewindow.owned=1\\u003c/script\\u003e",
    "${window.owned=1} `x` #{1}",
    "&lt;script&gt;window.owned=1&lt;/script&gt;",
    "' onmouseover='window.owned=1",
    '" style="position:fixed;inset:0" x="',
    "<style>*{display:none}</style>",
    "<iframe srcdoc='<script>parent.owned=1</script>'>",
    "<a href=javascript:window.owned=1>link</a>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "\x00\x01\x07\x1b[31m\x7f",
    "\ud800 half \udfff",
    "a\u0301\u0302\u0303" * 40,
    "Z\u030d\u0356\u0347a\u0335\u0316l\u0334g\u0337o" * 8,
    "W" * 5000,
    "مرحبا بالعالم",
    "שלום",
    "नमस्ते क्षत्रिय",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "__proto__",
    "constructor",
    "toString",
    "../../etc/passwd",
    "%2e%2e%2f%00",
    "",
    " ",
    "\t\n",
]
_WRAPPERS = [
    "{}",
    "a{}",
    "{}b",
    "<{}>",
    '"{}"',
    "'{}'",
    "\\{}",
    "{0}{0}",
    " {}",
    "{} </td>",
    "<textarea>{}",
    "<title>{}",
    "*/{}/*",
    "#{}",
    "?{}",
]


def hostile_strings(count: int = 500) -> list[str]:
    """The first `count` hostile strings, all different as long as there are enough."""
    distinct = dict.fromkeys(wrapper.format(payload) for wrapper in _WRAPPERS for payload in _PAYLOADS)
    return list(islice(cycle(distinct), count))


def hostile_records(strings: list[str], each: int = 50) -> list[Record]:
    """Records in which every text is hostile, with `each` strings per record."""
    return [_hostile_record(f"r{start}", strings[start : start + each]) for start in range(0, len(strings), each)]


def _hostile_record(record_id: str, strings: list[str]) -> Record:
    record = whole_record()
    count = len(strings)
    assert record.prediction is not None and record.positions is not None
    text = RecordText(" ".join(strings), tuple(strings), tuple(range(count)), language=strings[0])
    attention = AttentionRecord(
        strings[0],
        "source",
        columns="target",
        stored=distributions((1, 2, count, count), count),
        layers=(0,),
        importance={"metric": strings[1], "values": [[1.0, 0.5]]},
    )
    beams = ((0, strings[2], -1.0), (0, strings[3], -2.0))
    return replace(
        record,
        id=record_id,
        title=strings[2],
        task=strings[3],
        texts={"source": text, "target": text},
        attention=(attention,),
        qkv=(),
        best=None,
        steps=tuple(replace(record.steps[0], token=token, top=((token, 0.9),), beams=beams) for token in strings),
        prediction=replace(record.prediction, labels=tuple(strings), probabilities=(1 / count,) * count),
        attribution=(replace(record.attribution[0], method=strings[4], target=strings[5], values=(0.5,) * count),),
        positions=replace(record.positions, kind=strings[6]),
        provenance={"model": strings[7], "when": strings[8], "version": strings[9], "epoch": strings[10]},
        omissions=(replace(record.omissions[0], reason=strings[11], omitted=strings[12]),),
    )
