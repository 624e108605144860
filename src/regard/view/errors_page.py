"""An error book as one self-contained page: what a classifier confuses, where it is sure and wrong, what to look at."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from typing import Any

_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p { color: GrayText; max-width: 48rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid #8884; }
th { font-weight: 600; font-size: 13px; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
meter { width: 8rem; } .place { color: GrayText; font-size: 12px; }
"""


def errors_page(book: Mapping[str, Any], *, title: str) -> str:
    """Return the page; texts enter it escaped, and its policy allows no script at all.

    >>> empty = {"texts": 2, "wrong": 1, "confusions": [["good", "<bad>", 1]], "sure": [], "doubtful": []}
    >>> made = errors_page({**empty, "by_length": [], "by_rare_words": []}, title="runs/mood")
    >>> "&lt;bad&gt;" in made, "<bad>" in made, "1 of 2 texts" in made
    (True, False, True)
    """
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    share = 100 * book["wrong"] / max(1, book["texts"])
    parts = [
        f"<h1>Error book of {html.escape(title)}</h1>",
        f"<p>{book['wrong']:,} of {book['texts']:,} texts ({share:.1f} %) have another label than they should.</p>",
        *_section(
            "Confusions",
            "Which label was given instead of which, the most frequent first.",
            ("right", "given", "texts"),
            [[_name(right), _name(given), count] for right, given, count in book["confusions"]],
        ),
        *_section("Sure and wrong", "The mistakes that the model was surest of.", *_examples(book["sure"])),
        *_section(
            "Likely wrong labels",
            "The model hardly believes the label that the data has, and is surer of another one than it usually is of "
            "texts that have that one: look at these first.",
            *_examples(book["doubtful"]),
        ),
        *_section("By length", "", ("length", "texts", "wrong", ""), _shares(book["by_length"])),
        *_section("By rare words", "", ("rare words", "texts", "wrong", ""), _shares(book["by_rare_words"])),
    ]
    head = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><title>{html.escape(title)}: errors</title>'
        f"<style>{_STYLE}</style></head><body>"
    )
    return "\n".join([head, *parts, "</body></html>"])


class _Markup(str):
    """Text that is HTML already."""


def _name(label: str) -> str:
    return label or "(no label)"


def _examples(found: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], list[list[Any]]]:
    heads = ("text", "right", "given", "its chance", "chance of the right one")
    return heads, [
        [
            _Markup(f'{html.escape(one["text"])} <span class="place">{html.escape(one["place"])}</span>'),
            _name(", ".join(one["wanted"])),
            _name(", ".join(one["said"])),
            one["probability"],
            one["wanted_probability"],
        ]
        for one in found
    ]


def _shares(groups: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for one in groups:
        share = one["wrong"] / max(1, one["texts"])
        meter = _Markup(f'<meter value="{share:.4f}"></meter> {share:.1%}')
        rows.append([one["group"], one["texts"], one["wrong"], meter])
    return rows


def _section(title: str, text: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    if not rows:
        return []
    cells = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads)
    made = [f"<h2>{html.escape(title)}</h2>", f"<p>{html.escape(text)}</p>" if text else "", f"<table><tr>{cells}</tr>"]
    for row in rows:
        made.append(f"<tr>{''.join(map(_cell, row))}</tr>")
    return [*made, "</table>"]


def _cell(value: Any) -> str:
    if isinstance(value, int | float):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{value if isinstance(value, _Markup) else html.escape(str(value))}</td>"
