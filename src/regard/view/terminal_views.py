"""Views of a record as lines of text: shaded blocks, bars and numbers, as wide as the window, plain where piped."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from rich.cells import cell_len, set_cell_size

from regard.errors import UsageError, nearest
from regard.view.figures.flow import default_row, rollout, rollout_steps, self_attention
from regard.view.figures.hops import hop_weights
from regard.view.figures.math import find_head_qkv, first_word_row, six_steps
from regard.view.figures.panels import format_percent
from regard.view.figures.positions import cosine_similarity
from regard.view.figures.prediction import ranked_labels
from regard.view.record.head_stats import head_stats
from regard.view.record.parts import LabelProbabilities, SpanProbabilities
from regard.view.record.record import Record
from regard.view.record.texts import escape_invisible
from regard.view.selection import NORMS, AttentionSelection, axis_units, find_row, select_attention
from regard.view.terminal import bar, hop_table, table_lines

MARGIN = 24  # longest name of a row


@dataclass(frozen=True)
class TerminalRequest:
    """What is to be printed of a record, and how."""

    record: Record
    width: int
    attention: str = ""
    layer: int | None = None
    head: int | None = None
    words: bool = True
    token: str | int | None = None
    norm: str = "raw"
    colour: bool = False
    ascii_only: bool = False

    @cached_property
    def chosen(self) -> AttentionSelection:
        """The table of weights."""
        return select_attention(self.record, self.attention, self.layer, self.head, words=self.words, norm=self.norm)


def render_view(record: Record, view: str = "", **options: object) -> str:
    """Return a view of a record as text; without a view, the one that shows it best. Settings are those of `Wanted`.

    >>> from regard.view.record.parts import LabelProbabilities
    >>> print(render_view(Record("t", {}, (), verdict=LabelProbabilities(("bad", "good"), (0.25, 0.75))), width=40))
    good  ██████    75.0 %
    bad   ██        25.0 %
    """
    from regard.view.figure import default_view

    looks = any(options.get(part) not in (None, "") for part in ("attention", "layer", "head"))
    name = view or default_view(record, needs_attention=looks)
    if name not in TERMINAL_VIEWS:
        raise UsageError(f"no such view: {name}{nearest(name, TERMINAL_VIEWS)}: there are {', '.join(TERMINAL_VIEWS)}")
    asked = TerminalRequest(record, **{"width": window_width(), **options})  # type: ignore[arg-type]
    return "\n".join(line.rstrip() for line in TERMINAL_VIEWS[name](asked))


def window_width() -> int:
    """Return how wide lines may be: the window, or what people read easily where there is none."""
    return min(160, shutil.get_terminal_size((100, 24)).columns)


def supports_colour() -> bool:
    """Whether standard output is a terminal that wants colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _align(asked: TerminalRequest) -> list[str]:
    chosen = asked.chosen
    lines = table_lines(
        [unit.label for unit in chosen.rows],
        [unit.label for unit in chosen.columns],
        chosen.table,
        width=asked.width,
        colour=asked.colour,
        ascii_only=asked.ascii_only,
    )
    return [*lines, *_caption(asked, _named(chosen))]


def _look(asked: TerminalRequest) -> list[str]:
    """Say what one row, or each, looked at most."""
    chosen = asked.chosen
    row = chosen.find_row(asked.token)
    if row is None:
        names = _padded([unit.label for unit in chosen.rows])
        lines = []
        for name, weights in zip(names, chosen.table, strict=True):
            most = np.argsort(-weights, kind="stable")[:4]
            told = "  ".join(
                f"{escape_invisible(chosen.columns[place].label)} {format_percent(weights[place])}" for place in most
            )
            lines.append(_fitted(f"{name}  {told}", asked.width))
        return [*lines, *_caption(asked, _named(chosen))]
    order = np.argsort(-chosen.table[row], kind="stable")[:12]
    names = _padded([chosen.columns[place].label for place in order])
    lines = [
        f"{name}  {bar(chosen.table[row, place])} {format_percent(chosen.table[row, place])}"
        for name, place in zip(names, order, strict=True)
    ]
    return [
        _fitted(f"{escape_invisible(chosen.rows[row].label)} looks at", asked.width),
        *lines,
        *_caption(asked, _named(chosen)),
    ]


def _heads(asked: TerminalRequest) -> list[str]:
    seen = asked.chosen.attention
    stats = head_stats(seen, asked.record.texts[seen.columns].special)
    cells = [
        [f"{bits:.1f} {label}" for bits, label in zip(*pair, strict=True)]
        for pair in zip(stats["entropy"], stats["label"], strict=True)
    ]
    wide = max(len(cell) for row in cells for cell in row) + 2
    fit = max(1, (asked.width - 10) // wide)
    lines = []
    for first in range(0, seen.heads, fit):
        shown = range(first, min(seen.heads, first + fit))
        lines.append(" " * 10 + "".join(f"head {head}".ljust(wide) for head in shown))
        lines += [
            f"layer {layer}".ljust(10) + "".join(row[head].ljust(wide) for head in shown)
            for layer, row in zip(seen.layers, cells, strict=True)
        ]
        lines.append("")
    return [*lines[:-1], *_caption(asked, f"{seen.name}: entropy in bits, and what a head mostly does")]


def _steps(asked: TerminalRequest) -> list[str]:
    if not asked.record.steps:
        raise UsageError(f"the record has no steps: {asked.record.task} records of texts that were written have them")
    names = _padded([step.token.strip(" ▁") or "␣" for step in asked.record.steps])
    lines = []
    for number, (name, step) in enumerate(zip(names, asked.record.steps, strict=True), 1):
        others = "  ".join(
            f"{escape_invisible(token.strip(' ▁') or '␣')} {format_percent(chance)}" for token, chance in step.top[:8]
        )
        lines.append(
            _fitted(
                f"{number:>3} {name}  {bar(step.probability)} {format_percent(step.probability)} {step.entropy:5.1f}  {others}",
                asked.width,
            )
        )
    return [*lines, *_caption(asked, "probability, entropy in bits, the likeliest tokens")]


def _beams(asked: TerminalRequest) -> list[str]:
    found = [step.beams for step in asked.record.steps if step.beams]
    if not found:
        raise UsageError("the record has no beams: they are kept where a text was written with a beam of two or more")
    return [
        _fitted(
            f"{number:>3}  "
            + "   ".join(
                f"{escape_invisible(token.strip(' ▁') or '␣')} {score:.1f} ←{parent}" for parent, token, score in alive
            ),
            asked.width,
        )
        for number, alive in enumerate(found, 1)
    ] + _caption(asked, "beginnings kept after each step: token, log-probability, its place in the step before")


def _maths(asked: TerminalRequest) -> list[str]:
    inside = find_head_qkv(asked.record, asked.attention, asked.layer, asked.head)
    chosen = select_attention(asked.record, inside.attention, inside.layer, inside.head)
    row = chosen.find_row(asked.token)
    row = first_word_row(chosen) if row is None else row
    dots, scores, weights, scaled = six_steps(inside, row)
    keys = [place for place in np.argsort(-weights, kind="stable")[:16].tolist() if math.isfinite(scores[place])]
    names = _padded([chosen.columns[key].label for key in keys])
    head = f"{'':{cell_len(names[0])}}  {'q·k' if scaled else '':>9}  {'score':>7}  softmax"
    lines = []
    for name, key in zip(names, keys, strict=True):
        product, weight = f"{dots[key]:.2f}" if scaled else "", float(weights[key])
        lines.append(f"{name}  {product:>9}  {scores[key]:7.2f}  {bar(weight)} {format_percent(weight)}")
    scale = f"; score = q·k ÷ √{inside.query.shape[1]}" if scaled else ""
    return [
        f"query: {escape_invisible(chosen.rows[row].label)}",
        head,
        *lines,
        *_caption(asked, f"{chosen.site}{scale}"),
    ]


def _place(asked: TerminalRequest) -> list[str]:
    if asked.record.places is None:
        raise UsageError(
            "the record has no position codes: models that read words in no order, or one by one, have none"
        )
    count = min(len(asked.record.places.codes), 24, max(4, (asked.width - 8) // 2))
    alike = cosine_similarity(asked.record.places.codes[:count])
    labels = [str(place) for place in range(count)]
    lines = table_lines(labels, labels, np.square(np.clip(alike, 0, 1)), width=asked.width, colour=asked.colour,
                        ascii_only=asked.ascii_only, names=False)  # fmt: skip
    said = f"{asked.record.places.kind} codes: how alike the first {count} positions are (cosine)"
    return [*lines, *_caption(asked, said)]


def _verdict(asked: TerminalRequest) -> list[str]:
    found = asked.record.verdict
    if found is None:
        raise UsageError(f"the record has no verdict: {asked.record.task} records have none; labels and answers do")
    if isinstance(found, LabelProbabilities):
        return _bars(ranked_labels(found)[:20])
    return _spans(found)


def _spans(found: SpanProbabilities) -> list[str]:
    rows = [(text, score) for _, _, text, score in found.answers[:8]]
    rows += [("(no answer)", found.none)] if found.none is not None else []
    if all(0 <= score <= 1 for _, score in rows):
        return _bars(rows)
    return [f"{name}  {score:8.2f}" for name, (_, score) in zip(_padded([text for text, _ in rows]), rows, strict=True)]


def _bars(rows: Sequence[tuple[str, float]]) -> list[str]:
    names = _padded([name for name, _ in rows])
    return [f"{name}  {bar(chance)} {100 * chance:5.1f} %" for name, (_, chance) in zip(names, rows, strict=True)]


def _flow(asked: TerminalRequest) -> list[str]:
    seen = self_attention(asked.record, asked.attention)
    tokens = axis_units(asked.record.texts[seen.rows], words=asked.words)
    row = find_row(tokens, asked.token)
    row = default_row(tokens) if row is None else row
    reach = rollout(rollout_steps(seen, tokens), row)[0]
    names = _padded([unit.label for unit in tokens])
    lines = [
        f"{name}  {bar(float(given))} {format_percent(float(given))}" for name, given in zip(names, reach, strict=True)
    ]
    said = f"what reaches {tokens[row].label} through all layers of {seen.name}: rollout"
    return [*lines, *_caption(asked, said)]


def _hops(asked: TerminalRequest) -> list[str]:
    sentences, shares = hop_weights(asked.record)
    return hop_table(sentences, shares, width=asked.width)


def _caption(asked: TerminalRequest, text: str) -> list[str]:
    """Return a blank line and a text in lines that fit."""
    return ["", *textwrap.wrap(escape_invisible(text), max(20, asked.width))]


def _named(chosen: AttentionSelection) -> str:
    best = ", best aligning head" if chosen.is_best else ""
    best += ", read when a token is the next step's input" if chosen.later else ""
    return f"{chosen.site}{best}: {NORMS[chosen.norm]}, shaded by its root"


def _padded(names: Sequence[str]) -> list[str]:
    shown = [_fitted(escape_invisible(name), MARGIN) for name in names]
    wide = max(map(cell_len, shown), default=0)
    return [name + " " * (wide - cell_len(name)) for name in shown]


def _fitted(text: str, wide: int) -> str:
    return text if cell_len(text) <= wide else set_cell_size(text, wide - 1) + "…"


TERMINAL_VIEWS: dict[str, Callable[[TerminalRequest], list[str]]] = {
    "look": _look,
    "heads": _heads,
    "align": _align,
    "steps": _steps,
    "beams": _beams,
    "maths": _maths,
    "place": _place,
    "verdict": _verdict,
    "flow": _flow,
    "hops": _hops,
}
