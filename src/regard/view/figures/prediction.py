"""Verdict: how likely each label is; or where in a passage an answer begins and ends. Below, what counted for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.errors import UsageError
from regard.view.drawing import SIZE, SMALL, Drawing, is_right_to_left, text_width
from regard.view.figures.panels import FigureRequest, draw_notes, draw_signed_scale, format_percent
from regard.view.palette import HEAD_COLOURS, blend, signed_levels
from regard.view.record.parts import Attribution, LabelProbabilities, SpanProbabilities
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

LINE = 11.0
MOST = 12  # labels, or answers, that are shown
HIGH = 52.0  # of the curves
LINES = 14  # of a text with what counted in it


def draw_prediction(request: FigureRequest) -> Drawing:
    """Draw bars for labels, or curves along a passage; then the text, shaded by what counted."""
    drawing, found = request.drawing(), request.record.verdict
    if found is None:
        raise UsageError(f"the record has no verdict: {request.record.task} records have none; labels and answers do")
    bottom = (
        _labels(drawing, found) if isinstance(found, LabelProbabilities) else _spans(drawing, request.record, found)
    )
    for one in request.record.attribution[:1]:
        bottom = _attribution(drawing, request.record, one, bottom + 6)
    draw_notes(drawing, bottom)
    return drawing


def _labels(drawing: Drawing, found: LabelProbabilities) -> float:
    ranked = ranked_labels(found)
    if len(ranked) > MOST:
        rest = sum(chance for _, chance in ranked[MOST:])
        drawing.notes.append(f"the {MOST} likeliest of {len(ranked)} labels are shown; the others hold {rest:.0%}")
    return _bars(drawing, 2, ranked[:MOST])


def ranked_labels(found: LabelProbabilities) -> list[tuple[str, float]]:
    """Return labels with their probabilities, the likeliest first."""
    return sorted(zip(found.labels, found.probabilities, strict=True), key=lambda pair: -pair[1])


def _bars(drawing: Drawing, top: float, ranked: Sequence[tuple[str, float]]) -> float:
    theme = drawing.theme
    left = min(0.4 * drawing.width, max((text_width(label, SIZE) for label, _ in ranked), default=0.0)) + 5
    long = drawing.width - left - 24
    for number, (label, chance) in enumerate(ranked):
        y = top + LINE * number
        drawing.text(left - 5, y + 7.4, label, anchor="end", bold=number == 0, room=left - 5,
                     colour=theme.text if number == 0 else theme.soft)  # fmt: skip
        drawing.box(left, y + 1.5, long, LINE - 3.5, theme.raised)
        drawing.box(
            left, y + 1.5, long * min(1.0, max(0.0, chance)), LINE - 3.5, theme.plus if number == 0 else theme.mid
        )
        drawing.text(drawing.width, y + 7.4, f"{100 * chance:.1f} %", size=SMALL, anchor="end")
    return top + LINE * len(ranked)


def _spans(drawing: Drawing, record: Record, found: SpanProbabilities) -> float:
    """Draw the chance to begin and to end along the passage, the best answer shaded, then the ranked answers."""
    theme, side = drawing.theme, record.texts["source"]
    first, last = _passage(side)
    count = max(1, last - first)
    left, right, top = 18.0, drawing.width - 2, 10.0
    peak = max(1e-6, *found.start[first:last], *found.end[first:last])
    scale = 1.0 if peak > 0.5 else peak * 1.1

    def at(place: int, chance: float) -> tuple[float, float]:
        return left + (right - left) * (place - first + 0.5) / count, top + HIGH * (1 - chance / scale)

    if found.answers:
        begin, end, text, _ = found.answers[0]
        x, wide_ = at(begin, 0)[0] - 1.5, at(end, 0)[0] - at(begin, 0)[0] + 3
        drawing.box(x, top, wide_, HIGH, blend(theme.ground, theme.mark, 0.25))
    for chance in (0.0, scale / 2, scale):
        y = at(first, chance)[1]
        drawing.stroke([(left, y), (right, y)], theme.line, width=0.4)
        drawing.text(left - 3, y + 2, format_percent(chance), size=5.2, colour=theme.soft, anchor="end")
    for number, (name, curve) in enumerate((("start", found.start), ("end", found.end))):
        colour = HEAD_COLOURS[number] if theme.name == "light" else (theme.plus, theme.minus)[number]
        points = [at(place, curve[place]) for place in range(first, last)]
        drawing.stroke(
            points if len(points) > 1 else points * 2, colour, width=1.0, dash=() if number == 0 else (2.5, 1.2)
        )
        drawing.text(left + 26 * number + 4, top - 3, name, size=5.6, colour=colour, bold=True)
        best = max(range(first, last), key=lambda place: curve[place])
        x, y = at(best, curve[best])
        token = side.tokens[best].strip()
        anchor = "end" if (number == 0) == (x - left > 24) else "start"
        shift = -3 if anchor == "end" else 3
        drawing.text(
            x + shift, max(top + 6, y + 2) + 7 * number, token, size=5.6, colour=colour, anchor=anchor, room=60
        )
    drawing.text(right, top - 3, f"{count} tokens of the passage →", size=5.6, colour=theme.soft, anchor="end")
    answers = [(text, score) for _, _, text, score in found.answers[:5]]
    if found.none is not None:
        answers.append(("(no answer)", found.none))
    bottom = top + HIGH + 6
    if answers and all(0 <= score <= 1 for _, score in answers):
        return _bars(drawing, bottom, answers)
    for number, (text, score) in enumerate(answers):
        drawing.text(
            0, bottom + 7.4 + LINE * number, f"{number + 1}  {text}", bold=number == 0, room=drawing.width - 30
        )
        drawing.text(drawing.width, bottom + 7.4 + LINE * number, f"{score:.2f}", size=SMALL, anchor="end")
    return bottom + LINE * len(answers)


def _passage(side: RecordText) -> tuple[int, int]:
    """Return the first token of the passage and the place after its last."""
    inside = [
        place
        for place, special in enumerate(side.special)
        if not special and (not side.segment or side.segment[place] == max(side.segment))
    ]
    return (inside[0], inside[-1] + 1) if inside else (0, len(side.tokens))


def _attribution(drawing: Drawing, record: Record, found: Attribution, top: float) -> float:
    side = record.texts[found.side]
    most = float(np.abs(found.values).max()) or 1.0
    levels = signed_levels(np.asarray(found.values), most)
    bottom = shaded_text(drawing, top, side, levels.tolist())
    said = f"{found.method} for “{found.of}”: blue counted for it, orange against it."
    if found.agreement is not None:
        said += f" Agreement with attention {found.agreement:.2f}.".replace("-", "−")
    return draw_signed_scale(drawing, bottom + 5, most, said)


def shaded_text(drawing: Drawing, top: float, side: RecordText, levels: Sequence[int]) -> float:
    """Write a text in lines, each token on the colour of its level; from the right where it is written so."""
    theme, line = drawing.theme, SIZE * 1.7
    turned = side.direction == "rtl" or (side.direction == "auto" and is_right_to_left(side.text))
    x, y = 0.0, top
    for place, level in enumerate(levels):
        if side.special[place]:
            continue
        text, apart = _written(side, place)
        room = text_width(text, SIZE) * 1.04
        x += text_width(" ", SIZE) if apart and x else 0.0
        if x + room > drawing.width and x:
            x, y = 0.0, y + line
            if y > top + line * (LINES - 1):
                drawing.notes.append(f"the text is shown up to token {place:,} of {len(levels):,}")
                return y
        left = drawing.width - x - room if turned else x
        drawing.box(left, y, room, line - 2.5, theme.signed(level) if level else theme.ground, radius=0.8)
        ink = theme.ink_on(theme.signed(level))
        drawing.text(left + room / 2, y + SIZE, text, colour=ink, anchor="middle", room=max(room, drawing.width))
        x += room
    return y + line


def _written(side: RecordText, place: int) -> tuple[str, bool]:
    """Return a token as it stands in its text, and whether white space stands before it."""
    if not side.spans:
        token = side.tokens[place]
        return token.strip(" ▁") or token, token.startswith((" ", "▁")) or place == 0 or side.words[
            place
        ] != side.words[place - 1]
    begin, end = side.spans[place]
    before = max((stop for start, stop in side.spans[:place] if start < begin), default=0)
    return side.text[begin:end].strip() or side.tokens[place], before < begin or side.text[begin:end][:1].isspace()
