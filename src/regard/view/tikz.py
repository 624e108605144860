r"""A drawing as TikZ: an ASCII file that compiles alone and can be `\input` where tikz is loaded.

Letters with accents are written as LaTeX's own commands; signs that pdfLaTeX has no font for are `\regardsign{65E5}`:
the sign itself with XeLaTeX and LuaLaTeX, its number with pdfLaTeX.
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
MOST = 128  # rows and columns of a grid
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
    """Return the drawing as a file of TikZ."""
    colours = _Colours()
    ground = colours.name(drawing.theme.ground)
    body = [line for mark in drawing.marks for line in _mark(mark, drawing, colours)]
    width, height = drawing.width + PAD, drawing.height + PAD
    frame = f"{_point(-PAD, -PAD)} rectangle {_point(width, height)}"
    comment = "".join(sign if " " <= sign <= "~" else "?" for sign in about)
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
    r"""Return text that LaTeX sets as it stands, in ASCII: no sign of it is a command.

    >>> escape_tex(r"50 % of \input{x}"), escape_tex("café"), escape_tex("日")
    ('50 \\% of \\textbackslash{}input\\{x\\}', "caf\\'{e}", '\\regardsign{65E5}')
    """
    return "".join(map(_sign, unicodedata.normalize("NFC", text)))


def _sign(sign: str) -> str:
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    if " " <= sign <= "~":
        return sign
    letter, *marks = list(unicodedata.normalize("NFD", sign))
    if len(marks) == 1 and marks[0] in _ACCENTS and letter.isascii() and letter.isalpha():
        return rf"\{_ACCENTS[marks[0]]}{{{letter}}}"
    return rf"\regardsign{{{ord(sign):04X}}}"


class _Colours:
    """Names of colours, each defined once."""

    def __init__(self) -> None:
        self.names: dict[Colour, str] = {}

    def name(self, colour: Colour) -> str:
        return self.names.setdefault(colour, f"regard{len(self.names)}")

    def lines(self) -> list[str]:
        return [rf"\definecolor{{{name}}}{{RGB}}{{{r},{g},{b}}}" for (r, g, b), name in self.names.items()]


def _mark(mark: Mark, drawing: Drawing, colours: _Colours) -> list[str]:
    match mark:
        case Box():
            look = [f"fill={colours.name(mark.fill)}"] if mark.fill else []
            if mark.stroke:
                look += [f"draw={colours.name(mark.stroke)}", f"line width={format_number(mark.line)}bp"]
            look += [f"rounded corners={format_number(mark.radius)}bp"] if mark.radius else []
            corner = _point(mark.x + mark.width, mark.y + mark.height)
            return [rf"\path[{','.join(look)}] {_point(mark.x, mark.y)} rectangle {corner};"]
        case Stroke():
            look = [colours.name(mark.colour), f"line width={format_number(mark.width)}bp"]
            if mark.dash:
                on, off = mark.dash[0], mark.dash[-1]
                look.append(f"dash pattern=on {format_number(on)}bp off {format_number(off)}bp")
            points = [_point(x, y) for x, y in mark.points]
            if mark.bent:
                return [rf"\draw[{','.join(look)}] {points[0]} .. controls {points[1]} and {points[2]} .. {points[3]};"]
            return [rf"\draw[{','.join(look)}] {' -- '.join(points)};"]
        case Disc():
            radius = f"circle[radius={format_number(mark.radius)}bp]"
            return [rf"\fill[{colours.name(mark.fill)}] {_point(mark.x, mark.y)} {radius};"]
        case TextLine():
            size = f"{format_number(mark.size)}}}{{{format_number(mark.size * 1.2)}"
            font = rf"\fontsize{{{size}}}\selectfont\sffamily" + (r"\bfseries" if mark.bold else "")
            look = [f"anchor={_ANCHORS[mark.anchor]}", f"text={colours.name(mark.colour)}", f"font={font}"]
            look += [f"rotate={format_number(mark.turn)}"] if mark.turn else []
            return [rf"\node[{','.join(look)}] at {_point(mark.x, mark.y)} {{{escape_tex(mark.text)}}};"]
        case Grid():
            return _grid(mark, drawing, colours)


def _grid(mark: Grid, drawing: Drawing, colours: _Colours) -> list[str]:
    lines = []
    height, width = mark.levels.shape
    if max(height, width) > MOST:
        lines.append(
            f"% {height} x {width} cells are drawn as fields, each as the strongest in it: TeX is slow with more"
        )
        mark = _coarser(mark)
    wide, tall = mark.cell
    for level, cells in runs(mark.levels).items():
        colour = colours.name(drawing.theme.signed(level) if mark.signed else drawing.theme.shade(level))
        if mark.gap:
            cells = [(row, first + place, 1) for row, first, count in cells for place in range(count)]
        drawn = [
            f"{_point(mark.x + wide * first, mark.y + tall * row)} rectangle "
            f"{_point(mark.x + wide * (first + count) - mark.gap, mark.y + tall * (row + 1) - mark.gap)}"
            for row, first, count in cells
        ]
        lines += [rf"\fill[{colour}] {' '.join(drawn[place : place + 64])};" for place in range(0, len(drawn), 64)]
    return lines


def _coarser(mark: Grid) -> Grid:
    """Return a grid of at most so many rows and columns upon the same place: the strongest level of each field."""
    levels = mark.levels
    for axis in (0, 1):
        count = levels.shape[axis]
        if count > MOST:
            starts = np.arange(MOST) * count // MOST
            high, low = (pick.reduceat(levels, starts, axis=axis) for pick in (np.maximum, np.minimum))
            levels = np.where(high >= -low, high, low)
    (wide, tall), (height, width) = mark.cell, mark.levels.shape
    return replace(mark, levels=levels, cell=(wide * width / levels.shape[1], tall * height / levels.shape[0]), gap=0.0)


def _point(x: float, y: float) -> str:
    return f"({format_number(x)},{format_number(y)})"
