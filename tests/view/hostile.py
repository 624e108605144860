"""Five hundred strings that try to become more than text."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice

from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from tests.view.samples import distributions, whole_record

_SEEDS = [
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
_AROUND = [
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
    """The first so many of them, all different."""
    made = dict.fromkeys(around.format(seed) for around in _AROUND for seed in _SEEDS)
    return list(islice(cycle(made), count)) if len(made) < count else list(made)[:count]


def hostile_records(strings: list[str], each: int = 50) -> list[Record]:
    """Records whose every text is hostile: so many strings each."""
    return [_record(f"r{place}", strings[place : place + each]) for place in range(0, len(strings), each)]


def _record(name: str, some: list[str]) -> Record:
    whole, count = whole_record(), len(some)
    assert whole.verdict is not None and whole.places is not None
    side = RecordText(" ".join(some), tuple(some), tuple(range(count)), language=some[0])
    ranked = {"metric": some[1], "by": [[1.0, 0.5]]}
    seen = AttentionRecord(
        some[0], "source", "target", distributions((1, 2, count, count), count), (0,), importance=ranked
    )
    beams = ((0, some[2], -1.0), (0, some[3], -2.0))
    return replace(
        whole,
        id=name,
        title=some[2],
        task=some[3],
        texts={"source": side, "target": side},
        attention=(seen,),
        inside=(),
        best=None,
        steps=tuple(replace(whole.steps[0], token=one, top=((one, 0.9),), beams=beams) for one in some),
        verdict=replace(whole.verdict, labels=tuple(some), probabilities=(1 / count,) * count),
        attribution=(replace(whole.attribution[0], method=some[4], of=some[5], values=(0.5,) * count),),
        places=replace(whole.places, kind=some[6]),
        made={"model": some[7], "when": some[8], "version": some[9], "epoch": some[10]},
        cut=(replace(whole.cut[0], why=some[11], dropped=some[12]),),
    )
