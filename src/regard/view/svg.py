"""A drawing as SVG text: fonts stay text, nothing is loaded, no text can become markup."""

from __future__ import annotations

from html import escape

from regard.view.drawing import (
    PAD,
    Box,
    Disc,
    Drawing,
    Grid,
    Mark,
    Stroke,
    TextLine,
    format_number,
    is_right_to_left,
    runs,
)
from regard.view.palette import LEVELS, Colour, Theme
from regard.view.record.texts import escape_invisible

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
    width, height, edge = format_number(wide), format_number(tall), format_number(-PAD)
    ground = f'fill="{_hex(theme.ground)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{format_number(wide / MM)}mm" '
        f'height="{format_number(tall / MM)}mm" viewBox="{edge} {edge} {width} {height}" role="img" '
        f'font-family="{FONTS}" fill="{_colour(theme.text, theme)}">',
        f"<title>{escape_xml(escape_invisible(title))}</title>",
        f"<desc>{escape_xml(escape_invisible(about))}</desc>" if about else "",
        "" if theme.is_inline else f'<rect x="{edge}" y="{edge}" width="{width}" height="{height}" {ground}/>',
        *(_mark(mark, drawing, turned) for mark in drawing.marks),
        "</svg>\n",
    ]
    return "\n".join(part for part in parts if part)


def escape_xml(text: str) -> str:
    """Return text that is only text inside an element or an attribute.

    >>> escape_xml('a<b>&"')
    'a&lt;b&gt;&amp;&quot;'
    """
    return escape(text).translate(_NOT_XML)


def _mark(mark: Mark, drawing: Drawing, turned: bool) -> str:
    theme = drawing.theme
    match mark:
        case Box():
            stroke = (
                f' stroke="{_colour(mark.stroke, theme)}" stroke-width="{format_number(mark.line)}"'
                if mark.stroke
                else ""
            )
            round_off = f' rx="{format_number(mark.radius)}"' if mark.radius else ""
            place = f'x="{format_number(mark.x)}" y="{format_number(mark.y)}"'
            size = f'width="{format_number(mark.width)}" height="{format_number(mark.height)}"'
            fill = _colour(mark.fill, theme) if mark.fill else "none"
            return f'<rect {place} {size} fill="{fill}"{stroke}{round_off}/>'
        case Stroke():
            points = [f"{format_number(x)} {format_number(y)}" for x, y in mark.points]
            path = f"M{points[0]}C{' '.join(points[1:])}" if mark.bent else "M" + "L".join(points)
            dash = f' stroke-dasharray="{" ".join(map(format_number, mark.dash))}"' if mark.dash else ""
            look = f'stroke="{_colour(mark.colour, theme)}" stroke-width="{format_number(mark.width)}"'
            return f'<path d="{path}" fill="none" {look}{dash}/>'
        case Disc():
            place = f'cx="{format_number(mark.x)}" cy="{format_number(mark.y)}"'
            return f'<circle {place} r="{format_number(mark.radius)}" fill="{_colour(mark.fill, theme)}"/>'
        case TextLine():
            return _words(mark, theme, turned)
        case Grid():
            return _grid(mark, drawing)


def _words(mark: TextLine, theme: Theme, turned: bool) -> str:
    from_right = turned and is_right_to_left(mark.text)
    anchor = _TURNED[mark.anchor] if from_right else mark.anchor
    look = [f'font-size="{format_number(mark.size)}"', f'fill="{_colour(mark.colour, theme)}"']
    if mark.turn:
        look.append(
            f'transform="translate({format_number(mark.x)} {format_number(mark.y)}) rotate({format_number(-mark.turn)})"'
        )
    else:
        look.append(f'x="{format_number(mark.x)}" y="{format_number(mark.y)}"')
    if anchor != "start":
        look.append(f'text-anchor="{anchor}"')
    if mark.bold:
        look.append('font-weight="bold"')
    if from_right:
        look.append('direction="rtl" unicode-bidi="embed"')
    return f"<text {' '.join(look)}>{escape_xml(mark.text)}</text>"


def _grid(mark: Grid, drawing: Drawing) -> str:
    """Return a path for each shade, never a node for each weight: a run of cells is a line as thick as it is tall."""
    wide, tall = mark.cell
    thick, gap = 1 - mark.gap / tall, mark.gap / wide
    paths = []
    for level, cells in runs(mark.levels).items():
        if mark.gap:
            cells = [(row, first + place, 1) for row, first, count in cells for place in range(count)]
        drawn = "".join(f"M{first} {row}h{format_number(count - gap, 3)}" for row, first, count in cells)
        paths.append(f'<path {_shade(level, mark, drawing.theme)} d="{drawn}"/>')
    middle = format_number(mark.y + tall * thick / 2)
    place = f"translate({format_number(mark.x)} {middle}) scale({format_number(wide, 5)} {format_number(tall, 5)})"
    crisp = "" if mark.gap else ' shape-rendering="crispEdges"'
    inside = "".join(paths)
    return (
        f'<g transform="{place}" fill="none" stroke-width="{format_number(thick, 4)}"{crisp}>{inside}</g>'
        if paths
        else ""
    )


def _shade(level: int, mark: Grid, theme: Theme) -> str:
    """The stroke of a level; inside a page, part of the full colour upon its ground."""
    if not theme.is_inline:
        return f'stroke="{_hex(theme.signed(level) if mark.signed else theme.shade(level))}"'
    full = theme.signed(LEVELS if level > 0 else -LEVELS) if mark.signed else theme.ink
    return f'stroke="{_hex(full)}" stroke-opacity="{format_number(abs(level) / LEVELS)}"'


def _colour(colour: Colour, theme: Theme) -> str:
    return "currentColor" if theme.is_inline and colour == theme.text else _hex(colour)


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
