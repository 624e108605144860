"""Steps: each token that was produced, how likely it was, how open the choice, and what else was thought of.

Beams: which beginnings a search kept after each step, and which of them won.
"""

from __future__ import annotations

from collections.abc import Sequence

from regard.errors import UsageError
from regard.view.drawing import SIZE, SMALL, Drawing, Point, text_width
from regard.view.figures.panels import TALLEST, FigureRequest, draw_notes, draw_small_text, format_percent
from regard.view.palette import LEVELS
from regard.view.record.parts import DecodingStep

STEP_ROW_HEIGHT = 10.5
BAR = 28.0  # of probability one
CANDIDATE = 31.0  # width of a candidate's field, at least


def draw_steps(request: FigureRequest) -> Drawing:
    """Draw a row for each step."""
    found = request.record.steps
    if not found:
        raise UsageError(f"the record has no steps: {request.record.task} records of texts that were written have them")
    drawing = request.drawing()
    theme = drawing.theme
    shown = found[: int(TALLEST / STEP_ROW_HEIGHT)]
    longest = min(58.0, max(text_width(_plain(step.token), SIZE) for step in shown)) + 4
    left = 12 + longest
    room = drawing.width - left - BAR - 40
    count = min(max(len(step.top) for step in shown), max(1, int(room / CANDIDATE))) if any(s.top for s in shown) else 0
    field = room / count if count else 0.0
    heads = ((left, "probability", "start"), (left + BAR + 32, "bits", "end"), (left + BAR + 40, "likeliest", "start"))
    for x, head, anchor in heads[: 3 if count else 2]:
        drawing.text(x, 6, head, size=5.6, colour=theme.soft, anchor=anchor)
    for number, step in enumerate(shown):
        y = 9 + STEP_ROW_HEIGHT * number
        drawing.text(8, y + 7.2, str(number + 1), size=5.2, colour=theme.soft, anchor="end")
        drawing.text(left - 4, y + 7.4, _plain(step.token), colour=theme.target, anchor="end", room=longest)
        drawing.box(left, y + 2, BAR, STEP_ROW_HEIGHT - 4, theme.raised)
        drawing.box(left, y + 2, BAR * min(1.0, max(0.0, step.probability)), STEP_ROW_HEIGHT - 4, theme.mid)
        drawing.text(left + BAR + 3, y + 7.2, format_percent(step.probability), size=SMALL)
        drawing.text(left + BAR + 32, y + 7.2, f"{step.entropy:.1f}", size=SMALL, colour=theme.soft, anchor="end")
        _candidates(drawing, step, left + BAR + 40, y, field, count)
    if len(shown) < len(found):
        drawing.notes.append(f"steps 1 to {len(shown):,} of {len(found):,} are shown")
    y = 9 + STEP_ROW_HEIGHT * len(shown) + 4
    said = "Probability of what was written; entropy of the whole distribution in bits"
    said += (
        "; fields are shaded by the root of their probability, raw, and framed where they were taken." if count else "."
    )
    draw_notes(drawing, draw_small_text(drawing, y, said))
    return drawing


def _candidates(drawing: Drawing, step: DecodingStep, left: float, y: float, field: float, count: int) -> None:
    theme = drawing.theme
    for place, (token, chance) in enumerate(step.top[:count]):
        x, level = left + field * place, round(LEVELS * max(0.0, chance) ** 0.5)
        ink = theme.ink_on(theme.shade(level))
        taken = token == step.token
        drawing.box(x, y + 0.7, field - 1.4, STEP_ROW_HEIGHT - 1.4, theme.shade(level), radius=1,
                    stroke=theme.mark if taken else None, line=0.9)  # fmt: skip
        number = text_width(format_percent(chance), 5.0)
        drawing.text(x + 2.4, y + 7.3, _plain(token), size=SMALL, colour=ink, room=field - number - 7)
        drawing.text(x + field - 3.6, y + 7.1, format_percent(chance), size=5.0, colour=ink, anchor="end")


def _plain(token: str) -> str:
    return token.strip(" ▁") or token.replace(" ", "␣")


Beams = Sequence[tuple[int, str, float]]  # place in the step before, token, score
STEP, BEAM_ROW_HEIGHT = 34.0, 11.0


def draw_beam_tree(request: FigureRequest) -> Drawing:
    """Draw the tree of a beam search, a column for each step, the best beginning on top."""
    found = [step.beams for step in request.record.steps if step.beams]
    if not found:
        raise UsageError("the record has no beams: they are kept where a text was written with a beam of two or more")
    drawing = request.drawing()
    won = _winning(request.record.steps[: len(found)], found)
    fit = max(1, int(drawing.width / STEP))
    across = min(drawing.width / min(fit, len(found)), 60.0)
    top, shown = 0.0, 0
    for first in range(0, len(found), fit):
        band = range(first, min(len(found), first + fit))
        high = BEAM_ROW_HEIGHT * max(len(found[step]) for step in band)
        if top + high > TALLEST:
            break
        for step in band:
            _step(drawing, found, won, step, (across * (step - first), top + 9), across, first=step == first)
        top, shown = top + high + 16, band.stop
    if shown < len(found):
        drawing.notes.append(f"steps 1 to {shown} of {len(found)} are shown")
    said = "Beginnings kept after each step, with their log-probability; bold: what was written."
    draw_notes(drawing, draw_small_text(drawing, top - 3, said))
    return drawing


def _step(
    drawing: Drawing, found: Sequence[Beams], won: list[int], step: int, corner: Point, across: float, *, first: bool
) -> None:
    """Draw what was alive after one step, and where each of it came from; a band's first step has no lines."""
    theme, (x, top) = drawing.theme, corner
    drawing.text(x + 2, top - 3.5, str(step + 1), size=5.2, colour=theme.soft)
    for place, (parent, token, score) in enumerate(found[step]):
        y, taken = top + BEAM_ROW_HEIGHT * (place + 0.5), won[step] == place
        if not first:
            start, below = x - 8, top + BEAM_ROW_HEIGHT * (parent + 0.5)
            points = ((start, below), (start + 5, below), (x - 4, y), (x + 1, y))
            line = theme.mark if taken and won[step - 1] == parent else theme.line
            drawing.stroke(points, line, width=1.1 if taken else 0.5, bent=True)
        colour = theme.target if taken else theme.soft
        drawing.text(x + 2, y + 0.6, token.strip(" ▁") or "␣", size=SMALL, colour=colour, bold=taken, room=across - 11)
        drawing.text(x + 2, y + 5, f"{score:.1f}".replace("-", "−"), size=4.2, colour=theme.soft)


def _winning(steps: Sequence[DecodingStep], found: Sequence[Beams]) -> list[int]:
    """Return the place of what was written in each step: back from the last, by parents; -1 where it is not known."""
    won = [-1] * len(found)
    last = [place for place, (_, token, _) in enumerate(found[-1]) if token == steps[-1].token]
    place = last[0] if last else 0
    for step in range(len(found) - 1, -1, -1):
        if not 0 <= place < len(found[step]):
            break
        won[step] = place
        place = found[step][place][0]
    return won
