// Matrix (heat map): weights of rows (queries) and columns (keys), the largest of each row dotted, with coverage and confidence.

import { sum } from "./arrays.js";
import { button, element, smallText, toolbar } from "./dom.js";
import { isBestHead } from "./head-map.js";
import { Heatmap, hoverCell } from "./heatmap.js";
import { weightTable } from "./html-table.js";
import { attentionMeaning, formatPercent } from "./labels.js";
import { current, isSelfAttention, queryRows } from "./selection.js";
import { state, update } from "./state.js";
import { term, TERMS } from "./terms.js";
import { entropy, queryRow, transpose } from "./weight-tables.js";

const MAX_SCORED_WEIGHTS = 400000; // beyond this, coverage and confidence are not computed
const MIN_DOT_WEIGHT = 0.1;
const ZOOM = 1.5;
const drawn = { heatmap: null };

const mean = (values) => sum(values) / Math.max(1, values.length);

// Coverage falls with the squared deviation of a column's total weight from 1; the confidence of a row is one minus its
// entropy relative to that of uniform weights. Figures compute the same (matrix_figure.py).
function scoreAlignment({ rows, columns, mean: table }) {
  const columnTotals = new Float32Array(columns.length);
  const maxEntropy = Math.log2(columns.length) || 1;
  const dots = [];
  const confidences = rows.map((_, row) => {
    const weights = queryRow(table, columns.length, [row]);
    let best = 0;
    weights.forEach((weight, column) => {
      columnTotals[column] += weight;
      if (weight > weights[best]) best = column;
    });
    if (weights[best] > MIN_DOT_WEIGHT) dots.push([row, best]);
    return Math.max(0, 1 - entropy(weights) / maxEntropy);
  });
  const textTotals = [...columnTotals].filter((_, column) => !columns[column].special);
  const penalties = textTotals.map((total) => Math.log(1 + (1 - total) ** 2));
  return { columnTotals, confidences, dots, coverage: Math.exp(-mean(penalties)), confidence: mean(confidences) };
}

export function selectAlignmentHead() {
  const best = current.record.view?.best || current.record.view;
  if (best?.attention) update({ attention: best.attention, layer: best.layer, heads: [best.head] });
}

// Options of the heatmap that depend on whether rows and columns are exchanged.
function orientation({ rows, columns, normalized, rowText, columnText }, scores) {
  const max = Math.max(1, ...(scores?.columnTotals ?? []));
  const coverageBars = scores && Array.from(scores.columnTotals, (total) => total / max);
  if (!state.transposed) {
    return {
      rows,
      columns,
      values: normalized,
      dots: scores?.dots,
      rowBars: scores?.confidences,
      columnBars: coverageBars,
      isMirrored: columnText.dir === "rtl",
    };
  }
  return {
    rows: columns,
    columns: rows,
    values: transpose(normalized, rows.length, columns.length),
    dots: scores?.dots.map(([row, column]) => [column, row]),
    rowBars: coverageBars,
    columnBars: scores?.confidences,
    isMirrored: rowText.dir === "rtl",
    isTransposed: true,
    arrow: "←",
    onHover: (row, column) => hoverCell(column, row),
  };
}

function matrixControls(scene) {
  const { attention, layer, heads } = scene;
  const isElsewhere = current.record.view?.best && !isBestHead(attention, layer, heads[0]);
  const { transposed } = state;
  return toolbar(
    element("p", { class: "note lead" }, `${attentionMeaning(scene)}.`),
    isElsewhere
      ? button("★ Best alignment head", selectAlignmentHead, { title: `${TERMS["alignment head"]} (b)` })
      : null,
    button("Transpose", () => update({ transposed: !transposed }), {
      title: "exchange rows and columns",
      "aria-pressed": String(transposed),
    }),
    button("−", () => drawn.heatmap.zoom(1 / ZOOM), {
      title: "zoom out (Ctrl and the wheel)",
      "aria-label": "zoom out",
    }),
    button("+", () => drawn.heatmap.zoom(ZOOM), { title: "zoom in (Ctrl and the wheel)", "aria-label": "zoom in" }),
  );
}

function describeScores({ coverage, confidence }) {
  return smallText(
    term("coverage", "Coverage"),
    ` ${formatPercent(coverage)} (100 %: each column receives a total weight of 1), `,
    term("confidence"),
    ` ${formatPercent(confidence)} (100 %: each row attends to one column).`,
  );
}

export const matrix = {
  key: "matrix",
  name: "Matrix",
  term: "heat map",
  summary: "the attention weights of one head. Rows are queries, columns are keys.",
  description:
    "Each row is a probability distribution: how much of its attention the row’s token gives to each column. The dot marks the largest weight of a row. Bars on the right show the confidence of each row, bars below the total weight of each column. Ctrl and the wheel zoom.",
  draw(stage, scene) {
    const { rows, columns } = scene;
    const scores = rows.length * columns.length <= MAX_SCORED_WEIGHTS ? scoreAlignment(scene) : null;
    drawn.heatmap = new Heatmap({
      ...orientation(scene, scores),
      isSelfAttention: isSelfAttention(scene.attention),
      width: stage.clientWidth,
      height: Math.max(320, Math.min(560, window.innerHeight - 330)),
      name: `attention weights, ${rows.length} rows by ${columns.length} columns; arrow keys move, v shows a table`,
    });
    stage.replaceChildren(matrixControls(scene), drawn.heatmap.element, scores ? describeScores(scores) : "");
    drawn.heatmap.layout();
    this.mark(scene);
  },
  prerender: (values, axes) => state.transposed || drawn.heatmap.prerender(values, axes),
  mark(scene) {
    const [row] = queryRows(scene);
    if (state.transposed) drawn.heatmap.mark(state.key, row);
    else drawn.heatmap.mark(row, state.key);
  },
  table: (scene) => weightTable("Attention weights", scene.rows, scene.columns, scene.normalized, queryRows(scene)[0]),
};
