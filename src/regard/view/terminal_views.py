"""Views of a record as lines of text: shaded blocks, bars and numbers, as wide as the window, plain where piped."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from rich.cells import cell_len, set_cell_size

from regard.components import VIEWS
from regard.errors import UsageError
from regard.registry import resolve
from regard.view.figures.flow_figure import default_row, rollout, rollout_steps, self_attention
from regard.view.figures.hops_figure import hop_weights
from regard.view.figures.math_figure import find_head_qkv, first_word_row, largest_keys
from regard.view.figures.panels import format_percent
from regard.view.figures.positions_figure import cosine_similarity, find_positions
from regard.view.figures.prediction_figure import ranked_labels
from regard.view.record.head_stats import head_stats
from regard.view.record.parts import LabelProbabilities, SpanProbabilities
from regard.view.record.record import Record
from regard.view.record.texts import escape_invisible
from regard.view.selection import NORMS, AttentionSelection, axis_units, find_row, select_attention
from regard.view.terminal import bar, hop_table, table_lines

MAX_LABEL_WIDTH = 24
ROW_LABEL_WIDTH = 10  # of layers
MAX_KEYS_PER_ROW = 4  # where every query is shown
MAX_KEYS = 12  # where one query is shown
MAX_MATH_KEYS = 16
MAX_CANDIDATES = 8
MAX_LABELS = 20


@dataclass(frozen=True)
class TerminalRequest:
    """A record and the part of it that a terminal shows."""

    record: Record
    width: int
    attention: str = ""
    layer: int | None = None
    head: int | None = None
    words: bool = True
    token: str | int | None = None
    norm: str = "raw"
    colour: bool = False
    ascii_only: bool = False

    @cached_property
    def selection(self) -> AttentionSelection:
        """The selected table of weights."""
        return select_attention(self.record, self.attention, self.layer, self.head, words=self.words, norm=self.norm)


def render_view(record: Record, view: str = "", **options: object) -> str:
    """Render a view of a record as text; by default the one that suits it best. Options are those of the request.

    >>> from regard.view.record.parts import LabelProbabilities
    >>> print(render_view(Record("t", {}, (), prediction=LabelProbabilities(("bad", "good"), (0.25, 0.75))), width=40))
    good  ██████    75.0 %
    bad   ██        25.0 %
    """
    from regard.view.figure import default_view

    needs_attention = any(options.get(name) not in (None, "") for name in ("attention", "layer", "head"))
    name = view or default_view(record, needs_attention=needs_attention)
    render = resolve(VIEWS[name].render)
    if render is None:
        raise UsageError(f"the view {name} is not for a terminal: leave out --view, or see it with `regard see`")
    request = TerminalRequest(record, **{"width": window_width(), **options})  # type: ignore[arg-type]
    return "\n".join(line.rstrip() for line in render(request))


def window_width() -> int:
    """Columns of the terminal, at most 160; 100 where there is none."""
    return min(160, shutil.get_terminal_size((100, 24)).columns)


def supports_colour() -> bool:
    """Whether standard output is a terminal that accepts colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def render_matrix(request: TerminalRequest) -> list[str]:
    """Attention matrix of one head, shaded."""
    selection = request.selection
    lines = table_lines(
        [unit.label for unit in selection.rows],
        [unit.label for unit in selection.columns],
        selection.table,
        width=request.width,
        colour=request.colour,
        ascii_only=request.ascii_only,
    )
    return [*lines, *_caption(request, _describe_selection(selection))]


def render_lines(request: TerminalRequest) -> list[str]:
    """The largest weights of one query, or of each."""
    selection = request.selection
    row = selection.find_row(request.token)
    lines = _largest_of_each(request) if row is None else _largest_of_query(request, row)
    return [*lines, *_caption(request, _describe_selection(selection))]


def _largest_of_each(request: TerminalRequest) -> list[str]:
    selection = request.selection
    labels = _pad_labels([unit.label for unit in selection.rows])
    lines = []
    for label, weights in zip(labels, selection.table, strict=True):
        keys = np.argsort(-weights, kind="stable")[:MAX_KEYS_PER_ROW]
        cells = [f"{escape_invisible(selection.columns[key].label)} {format_percent(weights[key])}" for key in keys]
        lines.append(_truncate(f"{label}  {'  '.join(cells)}", request.width))
    return lines


def _largest_of_query(request: TerminalRequest, row: int) -> list[str]:
    selection = request.selection
    weights = selection.table[row]
    keys = np.argsort(-weights, kind="stable")[:MAX_KEYS]
    labels = _pad_labels([selection.columns[key].label for key in keys])
    header = f"{escape_invisible(selection.rows[row].label)} attends to"
    bars = [
        f"{label}  {bar(weights[key])} {format_percent(weights[key])}" for label, key in zip(labels, keys, strict=True)
    ]
    return [_truncate(header, request.width), *bars]


def render_heads(request: TerminalRequest) -> list[str]:
    """Statistics of every head."""
    attention = request.selection.attention
    stats = head_stats(attention, request.record.texts[attention.columns].special)
    cells = []
    for entropies, labels in zip(stats["entropy"], stats["label"], strict=True):
        cells.append([f"{entropy:.1f} {label}" for entropy, label in zip(entropies, labels, strict=True)])
    column_width = max(len(cell) for row in cells for cell in row) + 2
    heads_per_band = max(1, (request.width - ROW_LABEL_WIDTH) // column_width)
    lines = []
    for start in range(0, attention.num_heads, heads_per_band):
        heads = range(start, min(attention.num_heads, start + heads_per_band))
        lines.append(" " * ROW_LABEL_WIDTH + "".join(f"head {head}".ljust(column_width) for head in heads))
        for layer, row in zip(attention.layers, cells, strict=True):
            label = f"layer {layer}".ljust(ROW_LABEL_WIDTH)
            lines.append(label + "".join(row[head].ljust(column_width) for head in heads))
        lines.append("")
    return [*lines[:-1], *_caption(request, f"{attention.name}: entropy in bits, and the main pattern of each head")]


def render_steps(request: TerminalRequest) -> list[str]:
    """Probability of each generated token, with alternatives."""
    steps = request.record.steps
    if not steps:
        raise UsageError("the record has no decoding steps: only records of generated texts have them")
    labels = _pad_labels([_readable(step.token) for step in steps])
    lines = []
    for step_number, (label, step) in enumerate(zip(labels, steps, strict=True), 1):
        candidates = [
            f"{escape_invisible(_readable(token))} {format_percent(probability)}"
            for token, probability in step.top[:MAX_CANDIDATES]
        ]
        probability = f"{bar(step.probability)} {format_percent(step.probability)} {step.entropy:5.1f}"
        lines.append(_truncate(f"{step_number:>3} {label}  {probability}  {'  '.join(candidates)}", request.width))
    return [*lines, *_caption(request, "probability, entropy in bits, the most probable tokens")]


def render_beams(request: TerminalRequest) -> list[str]:
    """Tree of the beam search."""
    beams = [step.beams for step in request.record.steps if step.beams]
    if not beams:
        raise UsageError("the record has no beams: they are stored for texts generated with a beam of two or more")
    lines = []
    for step_number, beam in enumerate(beams, 1):
        cells = [f"{escape_invisible(_readable(token))} {score:.1f} ←{parent}" for parent, token, score in beam]
        lines.append(_truncate(f"{step_number:>3}  {'   '.join(cells)}", request.width))
    return [*lines, *_caption(request, "hypotheses after each step: token, log-probability, index of the parent")]


def _readable(token: str) -> str:
    return token.strip(" ▁") or "␣"


def render_math(request: TerminalRequest) -> list[str]:
    """Six steps from a query to the output of a head."""
    qkv = find_head_qkv(request.record, request.attention, request.layer, request.head)
    selection = select_attention(request.record, qkv.attention, qkv.layer, qkv.head)
    row = selection.find_row(request.token)
    row = first_word_row(selection) if row is None else row
    keys = largest_keys(qkv, row, MAX_MATH_KEYS)
    unscaled_scores = qkv.unscaled_scores(row)
    labels = _pad_labels([selection.columns[key].label for key in keys])
    unscaled_name = "q·k" if qkv.is_dot_product else "score"
    width = max(7, len(qkv.scaling))
    normalization = escape_invisible(qkv.normalization)
    header = f"{'':{cell_len(labels[0])}}  {unscaled_name:>9}  {qkv.scaling:>{width}}  {normalization}"
    lines = []
    for label, key in zip(labels, keys, strict=True):
        weight = float(qkv.weights[row, key])
        numbers = f"{unscaled_scores[key]:9.2f}  {qkv.scores[row, key]:{width}.2f}"
        lines.append(f"{label}  {numbers}  {bar(weight)} {format_percent(weight)}")
    query = f"query: {escape_invisible(selection.rows[row].label)}"
    return [query, header, *lines, *_caption(request, selection.site)]


def render_positions(request: TerminalRequest) -> list[str]:
    """Similarity of positional encodings."""
    positions = find_positions(request.record)
    count = min(len(positions.encodings), 24, max(4, (request.width - 8) // 2))
    similarity = cosine_similarity(positions.encodings[:count])
    labels = [str(position) for position in range(count)]
    lines = table_lines(
        labels,
        labels,
        np.square(np.clip(similarity, 0, 1)),
        width=request.width,
        colour=request.colour,
        ascii_only=request.ascii_only,
        names=False,
    )
    caption = f"{positions.kind} encodings: cosine similarity of the first {count} positions"
    return [*lines, *_caption(request, caption)]


def render_prediction(request: TerminalRequest) -> list[str]:
    """Probabilities of labels or answers."""
    prediction = request.record.prediction
    if prediction is None:
        raise UsageError(
            f"the record has no prediction: {request.record.task} records have none; classifiers and question "
            "answering do"
        )
    if isinstance(prediction, LabelProbabilities):
        return _render_bars(ranked_labels(prediction)[:MAX_LABELS])
    return _render_answers(prediction)


def _render_answers(prediction: SpanProbabilities) -> list[str]:
    answers = [(text, score) for _, _, text, score in prediction.answers[:8]]
    if prediction.no_answer is not None:
        answers.append(("(no answer)", prediction.no_answer))
    if all(0 <= score <= 1 for _, score in answers):
        return _render_bars(answers)
    labels = _pad_labels([text for text, _ in answers])
    return [f"{label}  {score:8.2f}" for label, (_, score) in zip(labels, answers, strict=True)]


def _render_bars(rows: Sequence[tuple[str, float]]) -> list[str]:
    labels = _pad_labels([label for label, _ in rows])
    return [
        f"{label}  {bar(probability)} {100 * probability:5.1f} %"
        for label, (_, probability) in zip(labels, rows, strict=True)
    ]


def render_flow(request: TerminalRequest) -> list[str]:
    """Attention rollout to one token through all layers."""
    attention = self_attention(request.record, request.attention)
    tokens = axis_units(request.record.texts[attention.rows], words=request.words)
    row = find_row(tokens, request.token)
    row = default_row(tokens) if row is None else row
    input_flow = rollout(rollout_steps(attention, tokens), row)[0]
    labels = _pad_labels([unit.label for unit in tokens])
    lines = [
        f"{label}  {bar(float(flow))} {format_percent(float(flow))}"
        for label, flow in zip(labels, input_flow, strict=True)
    ]
    caption = f"attention rollout to {tokens[row].label} through all layers of {attention.name}"
    return [*lines, *_caption(request, caption)]


def render_hops(request: TerminalRequest) -> list[str]:
    """Attention of each hop of a memory network."""
    sentences, weights = hop_weights(request.record)
    return hop_table(sentences, weights, width=request.width)


def _caption(request: TerminalRequest, text: str) -> list[str]:
    """A blank line, then the wrapped text."""
    return ["", *textwrap.wrap(escape_invisible(text), max(20, request.width))]


def _describe_selection(selection: AttentionSelection) -> str:
    description = selection.site
    if selection.is_best:
        description += ", best alignment head"
    if selection.later:
        description += ", read when a token is the next step's input"
    return f"{description}: {NORMS[selection.norm]}, shaded by its square root"


def _pad_labels(labels: Sequence[str]) -> list[str]:
    truncated = [_truncate(escape_invisible(label), MAX_LABEL_WIDTH) for label in labels]
    width = max(map(cell_len, truncated), default=0)
    return [label + " " * (width - cell_len(label)) for label in truncated]


def _truncate(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
