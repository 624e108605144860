"""Drawings as SVG: text stays text, nothing is loaded, no text can become markup."""

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

MM = 72 / 25.4  # points per millimetre
FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans', sans-serif"
_MIRRORED_ANCHORS = {"start": "end", "end": "start", "middle": "middle"}
_INVALID_XML = {0xFFFE: "\ufffd", 0xFFFF: "\ufffd"}


def svg_text(drawing: Drawing, *, title: str, about: str = "", mirror_rtl: bool = True) -> str:
    """Render a drawing; `mirror_rtl=False` leaves right-to-left text as it is, for renderers that know no direction.

    With an inline theme there is no background, and text takes the colour of the text around it.
    """
    theme = drawing.theme
    width_points = drawing.width + 2 * PAD
    height_points = drawing.height + 2 * PAD
    width = format_number(width_points)
    height = format_number(height_points)
    edge = format_number(-PAD)
    background = f'fill="{_hex(theme.ground)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{format_number(width_points / MM)}mm" '
        f'height="{format_number(height_points / MM)}mm" viewBox="{edge} {edge} {width} {height}" role="img" '
        f'font-family="{FONTS}" fill="{_colour(theme.text, theme)}">',
        f"<title>{escape_xml(escape_invisible(title))}</title>",
        f"<desc>{escape_xml(escape_invisible(about))}</desc>" if about else "",
        "" if theme.is_inline else f'<rect x="{edge}" y="{edge}" width="{width}" height="{height}" {background}/>',
        *(_render_mark(mark, drawing, mirror_rtl) for mark in drawing.marks),
        "</svg>\n",
    ]
    return "\n".join(part for part in parts if part)


def escape_xml(text: str) -> str:
    """Escape text for use inside an element or an attribute.

    >>> escape_xml('a<b>&"')
    'a&lt;b&gt;&amp;&quot;'
    """
    return escape(text).translate(_INVALID_XML)


def _render_mark(mark: Mark, drawing: Drawing, mirror_rtl: bool) -> str:
    theme = drawing.theme
    match mark:
        case Box():
            return _render_box(mark, theme)
        case Stroke():
            points = [f"{format_number(x)} {format_number(y)}" for x, y in mark.points]
            path = f"M{points[0]}C{' '.join(points[1:])}" if mark.bent else "M" + "L".join(points)
            dash = f' stroke-dasharray="{" ".join(map(format_number, mark.dash))}"' if mark.dash else ""
            style = f'stroke="{_colour(mark.colour, theme)}" stroke-width="{format_number(mark.width)}"'
            return f'<path d="{path}" fill="none" {style}{dash}/>'
        case Disc():
            centre = f'cx="{format_number(mark.x)}" cy="{format_number(mark.y)}"'
            return f'<circle {centre} r="{format_number(mark.radius)}" fill="{_colour(mark.fill, theme)}"/>'
        case TextLine():
            return _render_text(mark, theme, mirror_rtl)
        case Grid():
            return _render_grid(mark, drawing)


def _render_box(box: Box, theme: Theme) -> str:
    attributes = [
        f'x="{format_number(box.x)}" y="{format_number(box.y)}"',
        f'width="{format_number(box.width)}" height="{format_number(box.height)}"',
        f'fill="{_colour(box.fill, theme) if box.fill else "none"}"',
    ]
    if box.stroke:
        attributes.append(f'stroke="{_colour(box.stroke, theme)}" stroke-width="{format_number(box.line)}"')
    if box.radius:
        attributes.append(f'rx="{format_number(box.radius)}"')
    return f"<rect {' '.join(attributes)}/>"


def _render_text(mark: TextLine, theme: Theme, mirror_rtl: bool) -> str:
    is_rtl = mirror_rtl and is_right_to_left(mark.text)
    anchor = _MIRRORED_ANCHORS[mark.anchor] if is_rtl else mark.anchor
    x = format_number(mark.x)
    y = format_number(mark.y)
    attributes = [f'font-size="{format_number(mark.size)}"', f'fill="{_colour(mark.colour, theme)}"']
    if mark.turn:
        attributes.append(f'transform="translate({x} {y}) rotate({format_number(-mark.turn)})"')
    else:
        attributes.append(f'x="{x}" y="{y}"')
    if anchor != "start":
        attributes.append(f'text-anchor="{anchor}"')
    if mark.bold:
        attributes.append('font-weight="bold"')
    if is_rtl:
        attributes.append('direction="rtl" unicode-bidi="embed"')
    return f"<text {' '.join(attributes)}>{escape_xml(mark.text)}</text>"


def _render_grid(grid: Grid, drawing: Drawing) -> str:
    """Render one path per shade, never a node per weight: a run of cells is a line as thick as it is tall."""
    cell_width, cell_height = grid.cell
    thickness = 1 - grid.gap / cell_height
    gap = grid.gap / cell_width
    paths = []
    for level, cells in runs(grid.levels).items():
        if grid.gap:
            cells = [(row, start + offset, 1) for row, start, count in cells for offset in range(count)]
        commands = "".join(f"M{start} {row}h{format_number(count - gap, 3)}" for row, start, count in cells)
        paths.append(f'<path {_shade(level, grid, drawing.theme)} d="{commands}"/>')
    if not paths:
        return ""
    middle = format_number(grid.y + cell_height * thickness / 2)
    scale = f"scale({format_number(cell_width, 5)} {format_number(cell_height, 5)})"
    transform = f"translate({format_number(grid.x)} {middle}) {scale}"
    rendering = "" if grid.gap else ' shape-rendering="crispEdges"'
    attributes = f'transform="{transform}" fill="none" stroke-width="{format_number(thickness, 4)}"{rendering}'
    return f"<g {attributes}>{''.join(paths)}</g>"


def _shade(level: int, mark: Grid, theme: Theme) -> str:
    """Stroke of a level; inside a page, a fraction of the full colour over its background."""
    if not theme.is_inline:
        return f'stroke="{_hex(theme.signed(level) if mark.signed else theme.shade(level))}"'
    full = theme.signed(LEVELS if level > 0 else -LEVELS) if mark.signed else theme.ink
    return f'stroke="{_hex(full)}" stroke-opacity="{format_number(abs(level) / LEVELS)}"'


def _colour(colour: Colour, theme: Theme) -> str:
    return "currentColor" if theme.is_inline and colour == theme.text else _hex(colour)


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
