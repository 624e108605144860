"""Sketches of a recurrent encoder–decoder: with one vector between encoder and decoder, and with attention."""

from __future__ import annotations

from collections.abc import Sequence

from regard.view.drawing import SMALL, Drawing
from regard.view.figures.panels import format_percent
from regard.view.palette import Colour, Theme

STEP = 44.0  # from one state to the next, in points
STATE = 16.0  # width of a hidden state
STATE_HEIGHT = 12.0
BRIDGE = 76.0  # from the last state of the encoder to the first of the decoder
MIN_LINE = 0.01  # smaller weights have no line


def draw_bottleneck(theme: Theme, source: Sequence[str], target: Sequence[str]) -> Drawing:
    """Draw encoder and decoder in a row; one vector passes from one to the other."""
    encoder = [STEP * (index + 0.5) for index in range(len(source))]
    decoder = [encoder[-1] + BRIDGE + STEP * index for index in range(len(target))]
    y = 18.0
    drawing = Drawing(decoder[-1] + STEP / 2, theme)
    middle = y + STATE_HEIGHT / 2
    bridge = [(encoder[-1] + STATE / 2, middle), (decoder[0] - STATE / 2, middle)]
    drawing.stroke(bridge, theme.mark, width=2.4)
    centre = (encoder[-1] + decoder[0]) / 2
    drawing.text(centre, y - 5, "one vector", colour=theme.mark, anchor="middle", bold=True)
    _draw_states(drawing, encoder, y, theme.source)
    _draw_states(drawing, decoder, y, theme.target)
    _draw_words(drawing, encoder, y + STATE_HEIGHT + 10, source, theme.source)
    _draw_words(drawing, decoder, y + STATE_HEIGHT + 10, target, theme.target)
    drawing.end(y + STATE_HEIGHT + 16)
    return drawing


def draw_attention(
    theme: Theme, source: Sequence[str], target: Sequence[str], weights: Sequence[float], step: int
) -> Drawing:
    """Draw the decoder above the encoder, with the attention of one decoding step to every state of the encoder."""
    encoder = [STEP * (index + 0.5) for index in range(len(source))]
    shift = STEP * (len(source) - len(target)) / 2
    decoder = [shift + STEP * (index + 0.5) for index in range(len(target))]
    top = 14.0
    bottom = 70.0
    drawing = Drawing(STEP * len(source) + 12, theme)
    for x, weight in zip(encoder, weights, strict=True):
        if weight >= MIN_LINE:
            points = [(decoder[step], top + STATE_HEIGHT), (x, bottom)]
            drawing.stroke(points, theme.mid, width=0.5 + 4 * weight)
        drawing.text(x + STATE / 2 + 3, bottom - 2, format_percent(weight), size=SMALL, colour=theme.soft)
    _draw_states(drawing, encoder, bottom, theme.source)
    _draw_states(drawing, decoder, top, theme.target)
    _draw_words(drawing, encoder, bottom + STATE_HEIGHT + 10, source, theme.source)
    _draw_words(drawing, decoder, top - 5, target, theme.target, bold=step)
    drawing.end(bottom + STATE_HEIGHT + 16)
    return drawing


def _draw_words(
    drawing: Drawing, centres: Sequence[float], y: float, words: Sequence[str], colour: Colour, *, bold: int = -1
) -> None:
    for index, (x, word) in enumerate(zip(centres, words, strict=True)):
        drawing.text(x, y, word, colour=colour, anchor="middle", bold=index == bold)


def _draw_states(drawing: Drawing, centres: Sequence[float], y: float, colour: Colour) -> None:
    """Hidden states as boxes; each passes its content to the next."""
    theme = drawing.theme
    for index, x in enumerate(centres):
        if index:
            middle = y + STATE_HEIGHT / 2
            start = centres[index - 1] + STATE / 2
            drawing.stroke([(start, middle), (x - STATE / 2, middle)], theme.soft, width=0.8)
        drawing.box(x - STATE / 2, y, STATE, STATE_HEIGHT, theme.raised, stroke=colour, line=1.0, radius=2)
