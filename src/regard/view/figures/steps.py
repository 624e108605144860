"""Steps: each token that was produced, how likely it was, how open the choice, and what else was thought of."""

from __future__ import annotations

from regard.errors import UsageError
from regard.view.drawing import SIZE, SMALL, Drawing
from regard.view.figures.asked import Asked
from regard.view.figures.panels import TALLEST, fine_print, foot, share
from regard.view.lettering import wide
from regard.view.palette import LEVELS
from regard.view.record import Step

LINE = 10.5
BAR = 28.0  # of probability one
CANDIDATE = 31.0  # width of a candidate's field, at least


def steps(asked: Asked) -> Drawing:
    """Draw a row for each step."""
    found = asked.record.steps
    if not found:
        raise UsageError(f"the record has no steps: {asked.record.task} records of texts that were written have them")
    drawing = asked.drawing()
    theme = drawing.theme
    shown = found[: int(TALLEST / LINE)]
    longest = min(58.0, max(wide(_plain(step.token), SIZE) for step in shown)) + 4
    left = 12 + longest
    room = drawing.width - left - BAR - 40
    count = min(max(len(step.top) for step in shown), max(1, int(room / CANDIDATE))) if any(s.top for s in shown) else 0
    field = room / count if count else 0.0
    heads = ((left, "probability", "start"), (left + BAR + 32, "bits", "end"), (left + BAR + 40, "likeliest", "start"))
    for x, head, anchor in heads[: 3 if count else 2]:
        drawing.text(x, 6, head, size=5.6, colour=theme.soft, anchor=anchor)
    for number, step in enumerate(shown):
        y = 9 + LINE * number
        drawing.text(8, y + 7.2, str(number + 1), size=5.2, colour=theme.soft, anchor="end")
        drawing.text(left - 4, y + 7.4, _plain(step.token), colour=theme.target, anchor="end", room=longest)
        drawing.box(left, y + 2, BAR, LINE - 4, theme.raised)
        drawing.box(left, y + 2, BAR * min(1.0, max(0.0, step.probability)), LINE - 4, theme.mid)
        drawing.text(left + BAR + 3, y + 7.2, share(step.probability), size=SMALL)
        drawing.text(left + BAR + 32, y + 7.2, f"{step.entropy:.1f}", size=SMALL, colour=theme.soft, anchor="end")
        _candidates(drawing, step, left + BAR + 40, y, field, count)
    if len(shown) < len(found):
        drawing.notes.append(f"steps 1 to {len(shown):,} of {len(found):,} are shown")
    y = 9 + LINE * len(shown) + 4
    said = "Probability of what was written; entropy of the whole distribution in bits"
    said += (
        "; fields are shaded by the root of their probability, raw, and framed where they were taken." if count else "."
    )
    foot(drawing, fine_print(drawing, y, said))
    return drawing


def _candidates(drawing: Drawing, step: Step, left: float, y: float, field: float, count: int) -> None:
    theme = drawing.theme
    for place, (token, chance) in enumerate(step.top[:count]):
        x, level = left + field * place, round(LEVELS * max(0.0, chance) ** 0.5)
        ink = theme.ink_on(theme.shade(level))
        taken = token == step.token
        drawing.box(x, y + 0.7, field - 1.4, LINE - 1.4, theme.shade(level), radius=1,
                    stroke=theme.mark if taken else None, line=0.9)  # fmt: skip
        number = wide(share(chance), 5.0)
        drawing.text(x + 2.4, y + 7.3, _plain(token), size=SMALL, colour=ink, room=field - number - 7)
        drawing.text(x + field - 3.6, y + 7.1, share(chance), size=5.0, colour=ink, anchor="end")


def _plain(token: str) -> str:
    return token.strip(" ▁") or token.replace(" ", "␣")
