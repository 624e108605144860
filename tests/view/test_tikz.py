"""TikZ: ASCII files in which no text is a command, and which compile."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from regard.view.drawing import Grid
from regard.view.figure import FIGURE_VIEWS, figure
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.tikz import escape_tex
from tests.scale import HANG_GUARD
from tests.view.hostile import hostile_records, hostile_strings
from tests.view.samples import whole_record
from tests.view.test_figure import record_for

LATEX = [
    r"\input{/etc/passwd}",
    r"\end{document}",
    "}{",
    r"\write18{ls}",
    "$x$ & # % ^ _ ~",
    r"\\",
    "^^5cinput",
    "%\n%",
]
# what `tex` may write: plain signs, an escaped sign, a command of its own with its argument
PIECE = re.compile(
    r"[A-Za-z0-9 .:;=()\[\]*+/@~`']|\{[-,?!]\}|\\[{}$&#%_]"
    r"|\\(?:text[a-z]+|ldots|ss|ae|AE|oe|OE|o|O|l|L|i|quotedblbase|guillemot(?:left|right))\{\}"
    r"|\\ensuremath\{(?:-|\\[a-z]+)\}|\\regardsign\{[0-9A-F]{4,6}\}|\\(?:[`'^~=.\"]|[urHvdck] )\{[A-Za-z]\}"
)


@pytest.mark.parametrize("text", [*LATEX, *hostile_strings(500)[::3]])
def test_no_text_is_a_command(text: str) -> None:
    made = escape_tex(text.replace("\n", " ").replace("\t", " "))
    assert PIECE.sub("", made) == ""


@pytest.mark.parametrize("view", FIGURE_VIEWS)
def test_files_are_ascii_and_balanced(view: str) -> None:
    made = figure(record_for(view), view).tex
    assert made.isascii()
    plain = re.sub(r"\\[{}\\]", "", made)
    assert plain.count("{") == plain.count("}")
    assert made.count(r"\begin{tikzpicture}") == made.count(r"\end{tikzpicture}") == 1


def test_hostile_texts_cannot_end_the_picture() -> None:
    for record in hostile_records(hostile_strings(), each=100):
        made = figure(record, "align").tex
        assert made.isascii()
        assert len(re.findall(r"\\(?:input|write|end|begin|def)\b", made)) == len(
            re.findall(r"\\(?:input|write|end|begin|def)\b", figure(whole_record(), "align").tex)
        )


def test_large_matrices_are_drawn_coarser_upon_the_same_place() -> None:
    count = 300
    side = RecordText.from_subwords("x", [f"t{number}" for number in range(count)], range(count))
    seen = AttentionRecord("encoder.self", "source", "source", np.eye(count, dtype=np.float32)[None, None], (0,))
    made = figure(Record("x", {"source": side}, (seen,)), "align")
    grid = next(mark for mark in made.drawing.marks if isinstance(mark, Grid))
    assert "% 300 x 300 cells are pooled" in made.tex
    cells = re.findall(r"\(([\d.]+),([\d.]+)\) rectangle \(([\d.]+),([\d.]+)\)", made.tex.partition("% 300")[2])
    assert 128 <= len(cells) < 1000  # the diagonal, and the scale
    assert float(cells[127][2]) == pytest.approx(grid.x + grid.cell[0] * count, abs=0.1)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here: TikZ files are not compiled")
@pytest.mark.parametrize("view", FIGURE_VIEWS)
def test_files_compile_alone(view: str, tmp_path: Path) -> None:
    figure(record_for(view), view).save(tmp_path / "figure.tex")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "figure.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_GUARD)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Output written on figure.pdf (1 page" in done.stdout
