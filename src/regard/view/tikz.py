r"""Drawings as TikZ: an ASCII file that compiles alone and can be `\input` where tikz is loaded.

Letters with accents become LaTeX commands. Characters that pdfLaTeX has no font for become `\regardsign{65E5}`: the
character itself with XeLaTeX and LuaLaTeX, its code point with pdfLaTeX.
"""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import numpy as np

from regard.view.drawing import PAD, Box, Disc, Drawing, Grid, Mark, Stroke, TextLine, format_number, runs
from regard.view.palette import Colour

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "'": r"\textquotesingle{}", "`": r"\textasciigrave{}",
    "-": "{-}", ",": "{,}", "?": "{?}", "!": "{!}",
    "…": r"\ldots{}", "–": r"\textendash{}", "—": r"\textemdash{}", "·": r"\textperiodcentered{}",
    "→": r"\ensuremath{\rightarrow}", "←": r"\ensuremath{\leftarrow}", "√": r"\ensuremath{\surd}",
    "×": r"\ensuremath{\times}", "÷": r"\ensuremath{\div}", "±": r"\ensuremath{\pm}", "−": r"\ensuremath{-}",
    "⟨": r"\ensuremath{\langle}", "⟩": r"\ensuremath{\rangle}", "≥": r"\ensuremath{\geq}", "°": r"\textdegree{}",
    "▁": r"\_", "␣": r"\textvisiblespace{}", "∅": r"\ensuremath{\emptyset}",
    "“": "``", "”": "''", "‘": "`", "’": "'", "„": r"\quotedblbase{}", "«": r"\guillemotleft{}",
    "»": r"\guillemotright{}",
    "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "œ": r"\oe{}", "Œ": r"\OE{}", "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}",
    "Ł": r"\L{}", "ı": r"\i{}", "¿": r"\textquestiondown{}", "¡": r"\textexclamdown{}", "\u00a0": "~",
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u ", "\u0307": ".",
    "\u0308": '"', "\u030a": "r ", "\u030b": "H ", "\u030c": "v ", "\u0323": "d ", "\u0327": "c ", "\u0328": "k ",
}  # fmt: skip
MAX_GRID_SIZE = 128  # rows and columns
RECTANGLES_PER_PATH = 64
_ANCHORS = {"start": "base west", "middle": "base", "end": "base east"}

_HEAD = r"""% {about}
% Compile this file alone, or \input it where the preamble has \usepackage{{tikz}} and \usepackage[T1]{{fontenc}}.
% Words in scripts other than Latin need XeLaTeX or LuaLaTeX and a font that has them.
\ifdefined\tikzpicture\else
  \documentclass{{article}}
  \ifdefined\XeTeXversion\else\ifdefined\directlua\else\usepackage[T1]{{fontenc}}\fi\fi
  \usepackage{{textcomp}}
  \IfFileExists{{lmodern.sty}}{{\usepackage{{lmodern}}}}{{}}
  \usepackage{{tikz}}
  \pagestyle{{empty}}
  \setlength{{\hoffset}}{{-1in}}\setlength{{\voffset}}{{-1in}}
  \setlength{{\oddsidemargin}}{{0pt}}\setlength{{\topmargin}}{{0pt}}\setlength{{\headheight}}{{0pt}}
  \setlength{{\headsep}}{{0pt}}\setlength{{\parindent}}{{0pt}}\setlength{{\topskip}}{{0pt}}
  \setlength{{\paperwidth}}{{{width}bp}}\setlength{{\paperheight}}{{{height}bp}}
  \setlength{{\textwidth}}{{{width}bp}}\setlength{{\textheight}}{{{height}bp}}
  \ifdefined\pdfpagewidth\else\ifdefined\pagewidth\let\pdfpagewidth\pagewidth\let\pdfpageheight\pageheight\fi\fi
  \setlength{{\pdfpagewidth}}{{{width}bp}}\setlength{{\pdfpageheight}}{{{height}bp}}
  \def\regardalone{{}}
  \begin{{document}}
\fi
\providecommand{{\regardsign}}[1]{{{{\ifdefined\XeTeXversion\char"#1\else\ifdefined\directlua\char"#1\else[#1]\fi\fi}}}}
"""
_FOOT = r"""\ifdefined\regardalone\def\regardend{\end{document}}\else\let\regardend\relax\fi
\regardend
"""


def tikz_text(drawing: Drawing, *, about: str) -> str:
    """Render a drawing as a TikZ file."""
    colours = _Colours()
    ground = colours.name(drawing.theme.ground)
    body = [line for mark in drawing.marks for line in _render_mark(mark, drawing, colours)]
    width = drawing.width + PAD
    height = drawing.height + PAD
    frame = f"{_point(-PAD, -PAD)} rectangle {_point(width, height)}"
    comment = "".join(character if " " <= character <= "~" else "?" for character in about)
    head = _HEAD.format(about=comment, width=format_number(width + PAD), height=format_number(height + PAD))
    lines = [
        r"\begin{tikzpicture}[x=1bp,y=-1bp,line cap=butt,inner sep=0pt,outer sep=0pt]",
        *colours.lines(),
        rf"\useasboundingbox {frame};",
        rf"\fill[{ground}] {frame};",
        *body,
        r"\end{tikzpicture}%",
    ]
    return head + "\n".join(lines) + "\n" + _FOOT


def escape_tex(text: str) -> str:
    r"""Escape text for LaTeX, in ASCII: no character of it is a command.

    >>> escape_tex(r"50 % of \input{x}"), escape_tex("café"), escape_tex("日")
    ('50 \\% of \\textbackslash{}input\\{x\\}', "caf\\'{e}", '\\regardsign{65E5}')
    """
    return "".join(map(_escape_character, unicodedata.normalize("NFC", text)))


def _escape_character(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if " " <= character <= "~":
        return character
    letter, *marks = list(unicodedata.normalize("NFD", character))
    if len(marks) == 1 and marks[0] in _ACCENTS and letter.isascii() and letter.isalpha():
        return rf"\{_ACCENTS[marks[0]]}{{{letter}}}"
    return rf"\regardsign{{{ord(character):04X}}}"


class _Colours:
    """Colour names, each defined once."""

    def __init__(self) -> None:
        self.names: dict[Colour, str] = {}

    def name(self, colour: Colour) -> str:
        return self.names.setdefault(colour, f"regard{len(self.names)}")

    def lines(self) -> list[str]:
        return [rf"\definecolor{{{name}}}{{RGB}}{{{r},{g},{b}}}" for (r, g, b), name in self.names.items()]


def _render_mark(mark: Mark, drawing: Drawing, colours: _Colours) -> list[str]:
    match mark:
        case Box():
            style = [f"fill={colours.name(mark.fill)}"] if mark.fill else []
            if mark.stroke:
                style += [f"draw={colours.name(mark.stroke)}", f"line width={format_number(mark.line)}bp"]
            if mark.radius:
                style.append(f"rounded corners={format_number(mark.radius)}bp")
            corner = _point(mark.x + mark.width, mark.y + mark.height)
            return [rf"\path[{','.join(style)}] {_point(mark.x, mark.y)} rectangle {corner};"]
        case Stroke():
            style = [colours.name(mark.colour), f"line width={format_number(mark.width)}bp"]
            if mark.dash:
                dash = format_number(mark.dash[0])
                gap = format_number(mark.dash[-1])
                style.append(f"dash pattern=on {dash}bp off {gap}bp")
            points = [_point(x, y) for x, y in mark.points]
            if mark.bent:
                return [
                    rf"\draw[{','.join(style)}] {points[0]} .. controls {points[1]} and {points[2]} .. {points[3]};"
                ]
            return [rf"\draw[{','.join(style)}] {' -- '.join(points)};"]
        case Disc():
            radius = f"circle[radius={format_number(mark.radius)}bp]"
            return [rf"\fill[{colours.name(mark.fill)}] {_point(mark.x, mark.y)} {radius};"]
        case TextLine():
            size = f"{format_number(mark.size)}}}{{{format_number(mark.size * 1.2)}"
            font = rf"\fontsize{{{size}}}\selectfont\sffamily" + (r"\bfseries" if mark.bold else "")
            style = [f"anchor={_ANCHORS[mark.anchor]}", f"text={colours.name(mark.colour)}", f"font={font}"]
            if mark.turn:
                style.append(f"rotate={format_number(mark.turn)}")
            return [rf"\node[{','.join(style)}] at {_point(mark.x, mark.y)} {{{escape_tex(mark.text)}}};"]
        case Grid():
            return _render_grid(mark, drawing, colours)


def _render_grid(mark: Grid, drawing: Drawing, colours: _Colours) -> list[str]:
    lines = []
    height, width = mark.levels.shape
    if max(height, width) > MAX_GRID_SIZE:
        lines.append(f"% {height} x {width} cells are pooled to their largest levels: TeX is slow with more")
        mark = _pool_grid(mark)
    cell_width, cell_height = mark.cell
    for level, cells in runs(mark.levels).items():
        colour = colours.name(drawing.theme.signed(level) if mark.signed else drawing.theme.shade(level))
        if mark.gap:
            cells = [(row, start + offset, 1) for row, start, count in cells for offset in range(count)]
        rectangles = []
        for row, start, count in cells:
            corner = _point(mark.x + cell_width * start, mark.y + cell_height * row)
            right = mark.x + cell_width * (start + count) - mark.gap
            bottom = mark.y + cell_height * (row + 1) - mark.gap
            rectangles.append(f"{corner} rectangle {_point(right, bottom)}")
        for index in range(0, len(rectangles), RECTANGLES_PER_PATH):
            lines.append(rf"\fill[{colour}] {' '.join(rectangles[index : index + RECTANGLES_PER_PATH])};")
    return lines


def _pool_grid(mark: Grid) -> Grid:
    """Pool a grid to at most `MAX_GRID_SIZE` rows and columns: each block keeps its level of largest magnitude."""
    levels = mark.levels
    for axis in (0, 1):
        count = levels.shape[axis]
        if count > MAX_GRID_SIZE:
            starts = np.arange(MAX_GRID_SIZE) * count // MAX_GRID_SIZE
            largest = np.maximum.reduceat(levels, starts, axis=axis)
            smallest = np.minimum.reduceat(levels, starts, axis=axis)
            levels = np.where(largest >= -smallest, largest, smallest)
    cell_width, cell_height = mark.cell
    num_rows, num_columns = mark.levels.shape
    cell = (cell_width * num_columns / levels.shape[1], cell_height * num_rows / levels.shape[0])
    return replace(mark, levels=levels, cell=cell, gap=0.0)


def _point(x: float, y: float) -> str:
    return f"({format_number(x)},{format_number(y)})"
