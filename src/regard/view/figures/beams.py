"""Beams: which beginnings a search kept after each step, and which of them won."""

from __future__ import annotations

from collections.abc import Sequence

from regard.errors import UsageError
from regard.view.drawing import SMALL, Drawing, Point
from regard.view.figures.asked import Asked
from regard.view.figures.panels import TALLEST, fine_print, foot
from regard.view.record import Step

Beams = Sequence[tuple[int, str, float]]  # place in the step before, token, score
STEP, LINE = 34.0, 11.0


def beams(asked: Asked) -> Drawing:
    """Draw the tree of a beam search, a column for each step, the best beginning on top."""
    found = [step.beams for step in asked.record.steps if step.beams]
    if not found:
        raise UsageError("the record has no beams: they are kept where a text was written with a beam of two or more")
    drawing = asked.drawing()
    won = _winning(asked.record.steps[: len(found)], found)
    fit = max(1, int(drawing.width / STEP))
    across = min(drawing.width / min(fit, len(found)), 60.0)
    top, shown = 0.0, 0
    for first in range(0, len(found), fit):
        band = range(first, min(len(found), first + fit))
        high = LINE * max(len(found[step]) for step in band)
        if top + high > TALLEST:
            break
        for step in band:
            _step(drawing, found, won, step, (across * (step - first), top + 9), across, first=step == first)
        top, shown = top + high + 16, band.stop
    if shown < len(found):
        drawing.notes.append(f"steps 1 to {shown} of {len(found)} are shown")
    said = "Beginnings kept after each step, with their log-probability; bold: what was written."
    foot(drawing, fine_print(drawing, top - 3, said))
    return drawing


def _step(
    drawing: Drawing, found: Sequence[Beams], won: list[int], step: int, corner: Point, across: float, *, first: bool
) -> None:
    """Draw what was alive after one step, and where each of it came from; a band's first step has no lines."""
    theme, (x, top) = drawing.theme, corner
    drawing.text(x + 2, top - 3.5, str(step + 1), size=5.2, colour=theme.soft)
    for place, (parent, token, score) in enumerate(found[step]):
        y, taken = top + LINE * (place + 0.5), won[step] == place
        if not first:
            start, below = x - 8, top + LINE * (parent + 0.5)
            points = ((start, below), (start + 5, below), (x - 4, y), (x + 1, y))
            line = theme.mark if taken and won[step - 1] == parent else theme.line
            drawing.stroke(points, line, width=1.1 if taken else 0.5, bent=True)
        colour = theme.target if taken else theme.soft
        drawing.text(x + 2, y + 0.6, token.strip(" ▁") or "␣", size=SMALL, colour=colour, bold=taken, room=across - 11)
        drawing.text(x + 2, y + 5, f"{score:.1f}".replace("-", "−"), size=4.2, colour=theme.soft)


def _winning(steps: Sequence[Step], found: Sequence[Beams]) -> list[int]:
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
