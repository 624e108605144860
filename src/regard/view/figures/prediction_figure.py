"""Prediction: label probabilities or answer spans, and the attribution of the prediction to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import UsageError
from regard.view.drawing import SIZE, SMALL, Drawing, Point, is_right_to_left, text_width
from regard.view.figures.panels import FigureRequest, draw_notes, draw_signed_scale, format_percent
from regard.view.palette import HEAD_COLOURS, Colour, blend, signed_levels
from regard.view.record.parts import Attribution, LabelProbabilities, SpanProbabilities
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

ROW_HEIGHT = 11.0
MAX_LABELS = 12
MAX_ANSWERS = 5
CURVE_HEIGHT = 52.0
MAX_LINES = 14  # of a text with its attribution
BOLD = 1.1  # width of bold text relative to plain text


def draw_prediction(request: FigureRequest) -> Drawing:
    """Draw bars for labels or curves along a passage, then the text shaded by its attribution."""
    drawing = request.drawing()
    prediction = request.record.prediction
    if prediction is None:
        raise UsageError(
            f"the record has no prediction: {request.record.task} records have none; classifiers and question "
            "answering do"
        )
    if isinstance(prediction, LabelProbabilities):
        bottom = _draw_labels(drawing, prediction)
    else:
        bottom = _draw_spans(drawing, request.record, prediction)
    if request.record.attribution:
        bottom = _draw_attribution(drawing, request.record, request.record.attribution[0], bottom + 6)
    draw_notes(drawing, bottom)
    return drawing


def _draw_labels(drawing: Drawing, prediction: LabelProbabilities) -> float:
    ranked = ranked_labels(prediction)
    if len(ranked) > MAX_LABELS:
        other_probability = sum(probability for _, probability in ranked[MAX_LABELS:])
        drawing.notes.append(
            f"the {MAX_LABELS} most probable of {len(ranked)} labels are shown; the others hold {other_probability:.0%}"
        )
    return _draw_bars(drawing, 2, ranked[:MAX_LABELS])


def ranked_labels(prediction: LabelProbabilities) -> list[tuple[str, float]]:
    """Labels with their probabilities, most probable first."""
    return sorted(zip(prediction.labels, prediction.probabilities, strict=True), key=lambda pair: -pair[1])


def _draw_bars(drawing: Drawing, top: float, ranked: Sequence[tuple[str, float]]) -> float:
    theme = drawing.theme
    left = min(0.4 * drawing.width, max((BOLD * text_width(label, SIZE) for label, _ in ranked), default=0.0)) + 5
    length = drawing.width - left - 24
    bar_height = ROW_HEIGHT - 3.5
    for index, (label, probability) in enumerate(ranked):
        y = top + ROW_HEIGHT * index
        is_first = index == 0
        colour = theme.text if is_first else theme.soft
        drawing.text(left - 5, y + 7.4, label, anchor="end", bold=is_first, room=left - 5, colour=colour)
        drawing.box(left, y + 1.5, length, bar_height, theme.raised)
        fraction = min(1.0, max(0.0, probability))
        drawing.box(left, y + 1.5, length * fraction, bar_height, theme.ink if is_first else theme.mid)
        drawing.text(drawing.width, y + 7.4, f"{100 * probability:.1f} %", size=SMALL, anchor="end")
    return top + ROW_HEIGHT * len(ranked)


@dataclass(frozen=True)
class _CurveAxes:
    """Axes of start and end probabilities along a passage."""

    start: int  # first token of the passage
    stop: int
    left: float
    right: float
    top: float
    max_probability: float

    def point(self, token: int, probability: float) -> Point:
        x = self.left + (self.right - self.left) * (token - self.start + 0.5) / max(1, self.stop - self.start)
        return x, self.top + CURVE_HEIGHT * (1 - probability / self.max_probability)


def _draw_spans(drawing: Drawing, record: Record, prediction: SpanProbabilities) -> float:
    """Draw start and end probabilities along the passage, the best answer shaded, then the ranked answers."""
    theme = drawing.theme
    text = record.texts["source"]
    start, stop = _find_passage(text)
    peak = max(1e-6, *prediction.start[start:stop], *prediction.end[start:stop])
    axes = _CurveAxes(
        start,
        stop,
        left=18.0,
        right=drawing.width - 2,
        top=10.0,
        max_probability=1.0 if peak > 0.5 else peak * 1.1,
    )
    if prediction.answers:
        first, last, _, _ = prediction.answers[0]
        left = axes.point(first, 0)[0]
        width = axes.point(last, 0)[0] - left + 3
        drawing.box(left - 1.5, axes.top, width, CURVE_HEIGHT, blend(theme.ground, theme.mark, 0.25))
    for probability in (0.0, axes.max_probability / 2, axes.max_probability):
        y = axes.point(start, probability)[1]
        drawing.stroke([(axes.left, y), (axes.right, y)], theme.line, width=0.4)
        drawing.text(axes.left - 3, y + 2, format_percent(probability), size=5.2, colour=theme.soft, anchor="end")
    colours = HEAD_COLOURS[:2] if theme.name == "light" else (theme.minus, theme.plus)
    _draw_curve(drawing, axes, text, prediction.start, name="start", index=0, colour=colours[0])
    _draw_curve(drawing, axes, text, prediction.end, name="end", index=1, colour=colours[1])
    header = f"{max(1, stop - start)} tokens of the passage →"
    drawing.text(axes.right, axes.top - 3, header, size=5.6, colour=theme.soft, anchor="end")
    return _draw_answers(drawing, prediction, axes.top + CURVE_HEIGHT + 6)


def _draw_curve(
    drawing: Drawing,
    axes: _CurveAxes,
    text: RecordText,
    probabilities: Sequence[float],
    *,
    name: str,
    index: int,
    colour: Colour,
) -> None:
    tokens = range(axes.start, axes.stop)
    points = [axes.point(token, probabilities[token]) for token in tokens]
    if len(points) == 1:
        points *= 2
    drawing.stroke(points, colour, width=1.0, dash=() if index == 0 else (2.5, 1.2))
    drawing.text(axes.left + 26 * index + 4, axes.top - 3, name, size=5.6, colour=colour, bold=True)
    best = max(tokens, key=lambda token: probabilities[token])
    x, y = axes.point(best, probabilities[best])
    anchor = "end" if (index == 0) == (x - axes.left > 24) else "start"
    shift = -3 if anchor == "end" else 3
    label_y = max(axes.top + 6, y + 2) + 7 * index
    label = text.tokens[best].strip()
    drawing.text(x + shift, label_y, label, size=5.6, colour=colour, anchor=anchor, room=60)


def _draw_answers(drawing: Drawing, prediction: SpanProbabilities, top: float) -> float:
    answers = [(text, score) for _, _, text, score in prediction.answers[:MAX_ANSWERS]]
    if prediction.no_answer is not None:
        answers.append(("(no answer)", prediction.no_answer))
    if answers and all(0 <= score <= 1 for _, score in answers):
        return _draw_bars(drawing, top, answers)
    for index, (text, score) in enumerate(answers):
        y = top + 7.4 + ROW_HEIGHT * index
        drawing.text(0, y, f"{index + 1}  {text}", bold=index == 0, room=drawing.width - 30)
        drawing.text(drawing.width, y, f"{score:.2f}", size=SMALL, anchor="end")
    return top + ROW_HEIGHT * len(answers)


def _find_passage(text: RecordText) -> tuple[int, int]:
    """Range of the passage's tokens: the second text of a pair, without special tokens."""
    token_types = text.token_types
    passage_type = max(token_types, default=0)
    tokens = [
        index
        for index, is_special in enumerate(text.special)
        if not is_special and (not token_types or token_types[index] == passage_type)
    ]
    return (tokens[0], tokens[-1] + 1) if tokens else (0, len(text.tokens))


def _draw_attribution(drawing: Drawing, record: Record, attribution: Attribution, top: float) -> float:
    max_value = float(np.abs(attribution.values).max()) or 1.0
    levels = signed_levels(np.asarray(attribution.values), max_value)
    bottom = shaded_text(drawing, top, record.texts[attribution.text_name], levels.tolist())
    caption = f"{attribution.method} for “{attribution.target}”: orange supports it, blue opposes it."
    if attribution.agreement is not None:
        caption += f" Agreement with attention {attribution.agreement:.2f}.".replace("-", "−")
    if attribution.backend:
        caption += f" Computed by {attribution.backend}; difference from the answer {attribution.difference:.1e}."
    return draw_signed_scale(drawing, bottom + 5, max_value, caption)


def shaded_text(drawing: Drawing, top: float, side: RecordText, levels: Sequence[int]) -> float:
    """Write a text in lines, each token on the colour of its level; right to left where the script is."""
    theme = drawing.theme
    line_height = SIZE * 1.7
    is_rtl = side.direction == "rtl" or (side.direction == "auto" and is_right_to_left(side.text))
    x = 0.0
    y = top
    for index, level in enumerate(levels):
        if side.special[index]:
            continue
        token, has_space = _surface_form(side, index)
        width = text_width(token, SIZE) * 1.04
        if has_space and x:
            x += text_width(" ", SIZE)
        if x + width > drawing.width and x:
            x = 0.0
            y += line_height
            if y > top + line_height * (MAX_LINES - 1):
                drawing.notes.append(f"the text is shown up to token {index:,} of {len(levels):,}")
                return y
        left = drawing.width - x - width if is_rtl else x
        colour = theme.signed(level)
        drawing.box(left, y, width, line_height - 2.5, colour if level else theme.ground, radius=0.8)
        drawing.text(
            left + width / 2,
            y + SIZE,
            token,
            colour=theme.ink_on(colour),
            anchor="middle",
            room=max(width, drawing.width),
        )
        x += width
    return y + line_height


def _surface_form(text: RecordText, index: int) -> tuple[str, bool]:
    """A token as it is written in its text, and whether white space precedes it."""
    token = text.tokens[index]
    if not text.spans:
        starts_word = index == 0 or text.word_ids[index] != text.word_ids[index - 1]
        return token.strip(" ▁") or token, token.startswith((" ", "▁")) or starts_word
    start, end = text.spans[index]
    surface = text.text[start:end]
    previous_end = max((other_end for other_start, other_end in text.spans[:index] if other_start < start), default=0)
    return surface.strip() or token, previous_end < start or surface[:1].isspace()
