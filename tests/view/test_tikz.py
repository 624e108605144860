"""TikZ figures: ASCII files that compile, in which no text becomes a command."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from regard.view.drawing import Grid
from regard.view.figure import figure
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.tikz import escape_tex
from tests.scale import HANG_GUARD
from tests.view.hostile import hostile_records, hostile_strings
from tests.view.samples import whole_record
from tests.view.test_figure import FIGURES, record_for

COMMANDS = [
    r"\input{/etc/passwd}",
    r"\end{document}",
    "}{",
    r"\write18{ls}",
    "$x$ & # % ^ _ ~",
    r"\\",
    "^^5cinput",
    "%\n%",
]
# what `escape_tex` may write: plain characters, an escaped character, a command of its own with its argument
SAFE_TEX = re.compile(
    r"[A-Za-z0-9 .:;=()\[\]*+/@~`']|\{[-,?!]\}|\\[{}$&#%_]"
    r"|\\(?:text[a-z]+|ldots|ss|ae|AE|oe|OE|o|O|l|L|i|quotedblbase|guillemot(?:left|right))\{\}"
    r"|\\ensuremath\{(?:-|\\[a-z]+)\}|\\regardsign\{[0-9A-F]{4,6}\}|\\(?:[`'^~=.\"]|[urHvdck] )\{[A-Za-z]\}"
)


@pytest.mark.parametrize("text", [*COMMANDS, *hostile_strings(500)[::3]])
def test_escaped_text_holds_no_command(text: str) -> None:
    escaped = escape_tex(text.replace("\n", " ").replace("\t", " "))
    assert SAFE_TEX.sub("", escaped) == ""


@pytest.mark.parametrize("view", FIGURES)
def test_files_are_ascii_and_balanced(view: str) -> None:
    tex = figure(record_for(view), view).tex
    assert tex.isascii()
    without_escapes = re.sub(r"\\[{}\\]", "", tex)
    assert without_escapes.count("{") == without_escapes.count("}")
    assert tex.count(r"\begin{tikzpicture}") == tex.count(r"\end{tikzpicture}") == 1


def test_hostile_texts_cannot_end_the_picture() -> None:
    command = re.compile(r"\\(?:input|write|end|begin|def)\b")
    num_commands = len(command.findall(figure(whole_record(), "matrix").tex))
    for record in hostile_records(hostile_strings(), each=100):
        tex = figure(record, "matrix").tex
        assert tex.isascii()
        assert len(command.findall(tex)) == num_commands


def test_large_matrices_are_pooled_and_keep_their_size_on_paper() -> None:
    num_tokens = 300
    text = RecordText.from_subwords("x", [f"t{index}" for index in range(num_tokens)], range(num_tokens))
    weights = np.eye(num_tokens, dtype=np.float32)[None, None]
    attention = AttentionRecord("encoder.self", "source", "source", weights, (0,))
    drawn = figure(Record("x", {"source": text}, (attention,)), "matrix")
    grid = next(mark for mark in drawn.drawing.marks if isinstance(mark, Grid))
    assert "% 300 x 300 cells are pooled" in drawn.tex
    grid_tex = drawn.tex.partition("% 300")[2]
    cells = re.findall(r"\(([\d.]+),([\d.]+)\) rectangle \(([\d.]+),([\d.]+)\)", grid_tex)
    assert 128 <= len(cells) < 1000  # the diagonal and the colour scale
    assert float(cells[127][2]) == pytest.approx(grid.x + grid.cell[0] * num_tokens, abs=0.1)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed: TikZ files are not compiled")
@pytest.mark.parametrize("view", FIGURES)
def test_files_compile_as_standalone_documents(view: str, tmp_path: Path) -> None:
    figure(record_for(view), view).save(tmp_path / "figure.tex")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "figure.tex"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_GUARD)
    assert process.returncode == 0, process.stdout[-2000:]
    assert "Output written on figure.pdf (1 page" in process.stdout
