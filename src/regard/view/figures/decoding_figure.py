"""Decoding: the probability of each generated token with its alternatives, and the tree of the beam search."""

from __future__ import annotations

from collections.abc import Sequence

from regard.errors import UsageError
from regard.view.drawing import SIZE, SMALL, Drawing, Point, text_width
from regard.view.figures.panels import MAX_HEIGHT, FigureRequest, draw_notes, draw_small_text, format_percent
from regard.view.palette import LEVELS
from regard.view.record.parts import DecodingStep

Beams = Sequence[tuple[int, str, float]]  # index of the parent, token, score
STEP_ROW_HEIGHT = 10.5
BAR_WIDTH = 28.0  # of probability 1
MIN_CANDIDATE_WIDTH = 31.0
BEAM_ROW_HEIGHT = 11.0
MIN_BEAM_COLUMN = 34.0
MAX_BEAM_COLUMN = 60.0


def draw_steps(request: FigureRequest) -> Drawing:
    """Draw one row per generated token."""
    steps = request.record.steps
    if not steps:
        raise UsageError(
            f"the record has no decoding steps: {request.record.task} records of generated texts have them"
        )
    drawing = request.drawing()
    visible = steps[: int(MAX_HEIGHT / STEP_ROW_HEIGHT)]
    token_width = min(58.0, max(text_width(_readable(step.token), SIZE) for step in visible)) + 4
    left = 12 + token_width
    candidates_width = drawing.width - left - BAR_WIDTH - 40
    max_candidates = max(len(step.top) for step in visible)
    num_candidates = min(max_candidates, max(1, int(candidates_width / MIN_CANDIDATE_WIDTH)))
    column_width = candidates_width / num_candidates if num_candidates else 0.0
    _draw_headings(drawing, left, has_candidates=num_candidates > 0)
    for index, step in enumerate(visible):
        y = 9 + STEP_ROW_HEIGHT * index
        _draw_probability(drawing, step, index, left=left, y=y, token_width=token_width)
        _draw_candidates(drawing, step, left + BAR_WIDTH + 40, y, column_width=column_width, count=num_candidates)
    if len(visible) < len(steps):
        drawing.notes.append(f"steps 1 to {len(visible):,} of {len(steps):,} are shown")
    caption = "Probability of the generated token; entropy of the whole distribution in bits"
    if num_candidates:
        caption += "; candidates are shaded by the square root of their probability, the chosen one is framed"
    bottom = 9 + STEP_ROW_HEIGHT * len(visible) + 4
    draw_notes(drawing, draw_small_text(drawing, bottom, f"{caption}."))
    return drawing


def _draw_headings(drawing: Drawing, left: float, *, has_candidates: bool) -> None:
    headings = [(left, "probability", "start"), (left + BAR_WIDTH + 32, "bits", "end")]
    if has_candidates:
        headings.append((left + BAR_WIDTH + 40, "most probable", "start"))
    for x, heading, anchor in headings:
        drawing.text(x, 6, heading, size=5.6, colour=drawing.theme.soft, anchor=anchor)


def _draw_probability(
    drawing: Drawing, step: DecodingStep, index: int, *, left: float, y: float, token_width: float
) -> None:
    theme = drawing.theme
    bar_height = STEP_ROW_HEIGHT - 4
    fraction = min(1.0, max(0.0, step.probability))
    drawing.text(8, y + 7.2, str(index + 1), size=5.2, colour=theme.soft, anchor="end")
    drawing.text(left - 4, y + 7.4, _readable(step.token), colour=theme.target, anchor="end", room=token_width)
    drawing.box(left, y + 2, BAR_WIDTH, bar_height, theme.raised)
    drawing.box(left, y + 2, BAR_WIDTH * fraction, bar_height, theme.mid)
    drawing.text(left + BAR_WIDTH + 3, y + 7.2, format_percent(step.probability), size=SMALL)
    drawing.text(left + BAR_WIDTH + 32, y + 7.2, f"{step.entropy:.1f}", size=SMALL, colour=theme.soft, anchor="end")


def _draw_candidates(
    drawing: Drawing, step: DecodingStep, left: float, y: float, *, column_width: float, count: int
) -> None:
    theme = drawing.theme
    for index, (token, probability) in enumerate(step.top[:count]):
        x = left + column_width * index
        shade = theme.shade(round(LEVELS * max(0.0, probability) ** 0.5))
        ink = theme.ink_on(shade)
        is_chosen = token == step.token
        drawing.box(
            x,
            y + 0.7,
            column_width - 1.4,
            STEP_ROW_HEIGHT - 1.4,
            shade,
            radius=1,
            stroke=theme.mark if is_chosen else None,
            line=0.9,
        )
        label = format_percent(probability)
        token_width = column_width - text_width(label, 5.0) - 7
        drawing.text(x + 2.4, y + 7.3, _readable(token), size=SMALL, colour=ink, room=token_width)
        drawing.text(x + column_width - 3.6, y + 7.1, label, size=5.0, colour=ink, anchor="end")


def _readable(token: str) -> str:
    return token.strip(" ▁") or token.replace(" ", "␣")


def draw_beam_tree(request: FigureRequest) -> Drawing:
    """Draw the tree of a beam search: one column per step, the best hypothesis on top."""
    beams = [step.beams for step in request.record.steps if step.beams]
    if not beams:
        raise UsageError("the record has no beams: they are stored for texts generated with a beam of two or more")
    drawing = request.drawing()
    best_path = _find_best_path(request.record.steps[: len(beams)], beams)
    steps_per_band = max(1, int(drawing.width / MIN_BEAM_COLUMN))
    column_width = min(drawing.width / min(steps_per_band, len(beams)), MAX_BEAM_COLUMN)
    top = 0.0
    num_visible = 0
    for start in range(0, len(beams), steps_per_band):
        band = range(start, min(len(beams), start + steps_per_band))
        height = BEAM_ROW_HEIGHT * max(len(beams[step]) for step in band)
        if top + height > MAX_HEIGHT:
            break
        for step in band:
            corner = (column_width * (step - start), top + 9)
            _draw_beam(drawing, beams, best_path, step, corner, column_width, is_first=step == start)
        top += height + 16
        num_visible = band.stop
    if num_visible < len(beams):
        drawing.notes.append(f"steps 1 to {num_visible} of {len(beams)} are shown")
    caption = "Hypotheses after each step with their log-probability; bold: the generated text."
    draw_notes(drawing, draw_small_text(drawing, top - 3, caption))
    return drawing


def _draw_beam(
    drawing: Drawing,
    beams: Sequence[Beams],
    best_path: list[int],
    step: int,
    corner: Point,
    column_width: float,
    *,
    is_first: bool,
) -> None:
    """Draw the hypotheses after one step with lines to their parents; the first step of a band has none."""
    theme = drawing.theme
    x, top = corner
    drawing.text(x + 2, top - 3.5, str(step + 1), size=5.2, colour=theme.soft)
    for index, (parent, token, score) in enumerate(beams[step]):
        y = top + BEAM_ROW_HEIGHT * (index + 0.5)
        is_best = best_path[step] == index
        if not is_first:
            start = x - 8
            parent_y = top + BEAM_ROW_HEIGHT * (parent + 0.5)
            points = ((start, parent_y), (start + 5, parent_y), (x - 4, y), (x + 1, y))
            colour = theme.mark if is_best and best_path[step - 1] == parent else theme.line
            drawing.stroke(points, colour, width=1.1 if is_best else 0.5, bent=True)
        label = token.strip(" ▁") or "␣"
        colour = theme.target if is_best else theme.soft
        drawing.text(x + 2, y + 0.6, label, size=SMALL, colour=colour, bold=is_best, room=column_width - 11)
        drawing.text(x + 2, y + 5, f"{score:.1f}".replace("-", "−"), size=4.2, colour=theme.soft)


def _find_best_path(steps: Sequence[DecodingStep], beams: Sequence[Beams]) -> list[int]:
    """Index of the generated token's hypothesis in each step, followed back by parents; -1 where unknown."""
    path = [-1] * len(beams)
    matches = [index for index, (_, token, _) in enumerate(beams[-1]) if token == steps[-1].token]
    index = matches[0] if matches else 0
    for step in range(len(beams) - 1, -1, -1):
        if not 0 <= index < len(beams[step]):
            break
        path[step] = index
        index = beams[step][index][0]
    return path
