"""A drawing as SVG text: fonts stay text, nothing is loaded, no text can become markup."""

from __future__ import annotations

from html import escape

from regard.view.drawing import PAD, Box, Disc, Drawing, Grid, Mark, Stroke, Words, runs, short
from regard.view.lettering import is_from_right
from regard.view.palette import LEVELS, Colour, Theme
from regard.view.record_text import visible

MM = 72 / 25.4  # points of a millimetre
FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans', sans-serif"
_TURNED = {"start": "end", "end": "start", "middle": "middle"}
_NOT_XML = {0xFFFE: "\ufffd", 0xFFFF: "\ufffd"}


def svg_text(drawing: Drawing, *, title: str, about: str = "", turned: bool = True) -> str:
    """Return the drawing; `turned=False` writes right-to-left text as given, for readers that know no direction.

    With an inline theme it has no ground, and its text has the colour of the text around it.
    """
    theme = drawing.theme
    wide, tall = drawing.width + 2 * PAD, drawing.height + 2 * PAD
    width, height, edge = short(wide), short(tall), short(-PAD)
    ground = f'fill="{_hex(theme.ground)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{short(wide / MM)}mm" '
        f'height="{short(tall / MM)}mm" viewBox="{edge} {edge} {width} {height}" role="img" '
        f'font-family="{FONTS}" fill="{_colour(theme.text, theme)}">',
        f"<title>{escaped(visible(title))}</title>",
        f"<desc>{escaped(visible(about))}</desc>" if about else "",
        "" if theme.is_inline else f'<rect x="{edge}" y="{edge}" width="{width}" height="{height}" {ground}/>',
        *(_mark(mark, drawing, turned) for mark in drawing.marks),
        "</svg>\n",
    ]
    return "\n".join(part for part in parts if part)


def escaped(text: str) -> str:
    """Return text that is only text inside an element or an attribute.

    >>> escaped('a<b>&"')
    'a&lt;b&gt;&amp;&quot;'
    """
    return escape(text).translate(_NOT_XML)


def _mark(mark: Mark, drawing: Drawing, turned: bool) -> str:
    theme = drawing.theme
    match mark:
        case Box():
            stroke = f' stroke="{_colour(mark.stroke, theme)}" stroke-width="{short(mark.line)}"' if mark.stroke else ""
            round_off = f' rx="{short(mark.radius)}"' if mark.radius else ""
            place = f'x="{short(mark.x)}" y="{short(mark.y)}"'
            size = f'width="{short(mark.width)}" height="{short(mark.height)}"'
            fill = _colour(mark.fill, theme) if mark.fill else "none"
            return f'<rect {place} {size} fill="{fill}"{stroke}{round_off}/>'
        case Stroke():
            points = [f"{short(x)} {short(y)}" for x, y in mark.points]
            path = f"M{points[0]}C{' '.join(points[1:])}" if mark.bent else "M" + "L".join(points)
            dash = f' stroke-dasharray="{" ".join(map(short, mark.dash))}"' if mark.dash else ""
            look = f'stroke="{_colour(mark.colour, theme)}" stroke-width="{short(mark.width)}"'
            return f'<path d="{path}" fill="none" {look}{dash}/>'
        case Disc():
            place = f'cx="{short(mark.x)}" cy="{short(mark.y)}"'
            return f'<circle {place} r="{short(mark.radius)}" fill="{_colour(mark.fill, theme)}"/>'
        case Words():
            return _words(mark, theme, turned)
        case Grid():
            return _grid(mark, drawing)


def _words(mark: Words, theme: Theme, turned: bool) -> str:
    from_right = turned and is_from_right(mark.text)
    anchor = _TURNED[mark.anchor] if from_right else mark.anchor
    look = [f'font-size="{short(mark.size)}"', f'fill="{_colour(mark.colour, theme)}"']
    if mark.turn:
        look.append(f'transform="translate({short(mark.x)} {short(mark.y)}) rotate({short(-mark.turn)})"')
    else:
        look.append(f'x="{short(mark.x)}" y="{short(mark.y)}"')
    if anchor != "start":
        look.append(f'text-anchor="{anchor}"')
    if mark.bold:
        look.append('font-weight="bold"')
    if from_right:
        look.append('direction="rtl" unicode-bidi="embed"')
    return f"<text {' '.join(look)}>{escaped(mark.text)}</text>"


def _grid(mark: Grid, drawing: Drawing) -> str:
    """Return a path for each shade, never a node for each weight: a run of cells is a line as thick as it is tall."""
    wide, tall = mark.cell
    thick, gap = 1 - mark.gap / tall, mark.gap / wide
    paths = []
    for level, cells in runs(mark.levels).items():
        if mark.gap:
            cells = [(row, first + place, 1) for row, first, count in cells for place in range(count)]
        drawn = "".join(f"M{first} {row}h{short(count - gap, 3)}" for row, first, count in cells)
        paths.append(f'<path {_shade(level, mark, drawing.theme)} d="{drawn}"/>')
    middle = short(mark.y + tall * thick / 2)
    place = f"translate({short(mark.x)} {middle}) scale({short(wide, 5)} {short(tall, 5)})"
    crisp = "" if mark.gap else ' shape-rendering="crispEdges"'
    inside = "".join(paths)
    return f'<g transform="{place}" fill="none" stroke-width="{short(thick, 4)}"{crisp}>{inside}</g>' if paths else ""


def _shade(level: int, mark: Grid, theme: Theme) -> str:
    """The stroke of a level; inside a page, part of the full colour upon its ground."""
    if not theme.is_inline:
        return f'stroke="{_hex(theme.signed(level) if mark.signed else theme.shade(level))}"'
    full = theme.signed(LEVELS if level > 0 else -LEVELS) if mark.signed else theme.ink
    return f'stroke="{_hex(full)}" stroke-opacity="{short(abs(level) / LEVELS)}"'


def _colour(colour: Colour, theme: Theme) -> str:
    return "currentColor" if theme.is_inline and colour == theme.text else _hex(colour)


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
