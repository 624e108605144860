// Lines (head view): tokens in two columns with lines between them, or running text shaded by attention weight.

import { range } from "./arrays.js";
import { cssVariable, headColour, resizeCanvas, setShade, shadeLevel } from "./colours.js";
import { ariaBoolean, div, element, moveTabStop, root, segmentedControl, svgBox, svgElement, toolbar } from "./dom.js";
import { selectRow } from "./heatmap.js";
import { weightTable } from "./html-table.js";
import { attentionMeaning, formatWeight } from "./labels.js";
import { isSelfAttention, queryRows, selectedRow } from "./selection.js";
import { state, update } from "./state.js";
import { queryRow, smallestSet } from "./weight-tables.js";

const LINE_HEIGHT = 26;
const MAX_COLUMN_UNITS = 48; // above this, text is the default form
const MAX_UNITS = 400; // above this, text is the only form
const CHUNK = 50; // tokens per paragraph; the browser lays out only the visible paragraphs
const BACKGROUND_LINES = 6; // per row
const MIN_BAR_WEIGHT = 0.005;
const MIN_LABELLED_WEIGHT = 0.05;
const drawn = {}; // what is on the page: form, tokens, bars, lines, and what they were drawn from

export const lines = {
  key: "lines",
  name: "Lines",
  term: "head view",
  summary: "which tokens each token attends to.",
  description:
    "Tokens on the left are queries, tokens on the right keys. Lines show the fewest keys that hold 90 % of a query’s attention: the wider a line, the larger the weight. Point at a token to select it; a click pins it, a shift-click adds one, dragging selects a span. As text, the keys are shaded by their weight.",
  draw(stage, scene) {
    const form = chooseForm(scene);
    const inputs = [scene.rows, scene.columns, form, attentionMeaning(scene), root.dataset.theme];
    const isUnchanged =
      inputs.every((input, index) => input === drawn.inputs?.[index]) && stage.contains(drawn.rowTokens[0]);
    if (isUnchanged && form === "text") {
      this.mark(scene); // another head: only the shades change
      return;
    }
    drawn.form = form;
    drawn.inputs = inputs;
    drawn.shades = [];
    drawn.rowTokens = scene.rows.map((unit, row) => tokenElement(unit, "button", { "data-row": row }));
    drawn.columnTokens =
      isSelfAttention(scene.attention) && form === "text"
        ? drawn.rowTokens
        : scene.columns.map((unit) => tokenElement(unit, "span"));
    const forms = [
      ["Columns", "columns", "queries on the left, keys on the right"],
      ["Text", "text", "running text, shaded by attention weight"],
    ];
    stage.replaceChildren(
      toolbar(
        element("p", { class: "note lead" }, `${attentionMeaning(scene)}.`),
        segmentedControl("form", forms, form, (selected) => update({ form: selected })),
      ),
      form === "columns" ? drawColumns(stage, scene) : drawText(scene),
    );
    this.mark(scene);
  },
  mark(scene) {
    const queries = queryRows(scene);
    const weights = selectedRow(scene);
    const level = shadeLevel(state.norm);
    drawn.rowTokens.forEach((token, row) => {
      const isPressed = ariaBoolean(queries.includes(row));
      if (token.getAttribute("aria-pressed") !== isPressed) token.setAttribute("aria-pressed", isPressed);
    });
    moveTabStop(drawn.rowTokens, queries[0]);
    drawn.columnTokens.forEach((token, column) => {
      const shade = level(weights[column]);
      if (drawn.shades[column] !== shade) setShade(token, shade);
      drawn.shades[column] = shade;
    });
    if (drawn.form === "columns") {
      drawLines(scene, queries);
      drawBars(scene, queries, weights);
    }
  },
  table: (scene) =>
    weightTable("Attention weights of each query", scene.rows, scene.columns, scene.normalized, queryRows(scene)[0]),
};

function chooseForm({ rows, columns }) {
  const count = Math.max(rows.length, columns.length);
  if (count > MAX_UNITS) return "text";
  return state.form || (count <= MAX_COLUMN_UNITS ? "columns" : "text");
}

export function tokenElement(unit, tag = "span", attributes = {}) {
  const className = unit.special ? "token special" : "token";
  return element(tag, { class: className, ...attributes }, unit.label.slice(0, 200));
}

const drag = { from: -1, span: null };

// Selects rows by pointer: hovering shows one, a click pins it, dragging pins a span. One listener serves all tokens.
function listenForRows(box) {
  const rowOf = ({ target }) => Number(target.closest("[data-row]")?.dataset.row ?? -1);
  const listen = (type, handle) =>
    box.addEventListener(type, (event) => rowOf(event) >= 0 && handle(event, rowOf(event)));
  listen("click", (event, row) => {
    if (!drag.span) selectRow(row, event.shiftKey);
    drag.span = null;
  });
  listen("pointerdown", (event, row) => {
    drag.from = event.pointerType === "mouse" ? row : -1;
    drag.span = null;
  });
  listen("pointerover", (event, row) => {
    if (event.buttons && drag.from >= 0 && drag.from !== row) {
      const first = Math.min(drag.from, row);
      drag.span = range(Math.abs(row - drag.from) + 1, (offset) => first + offset);
      update({ pins: drag.span, query: row });
    } else if (!state.pins.length) update({ query: row });
  });
  return box;
}

// ---- two columns ---------------------------------------------------------------------------------------------------

function drawColumns(stage, scene) {
  const width = Math.max(70, Math.min(420, stage.clientWidth - 400));
  const height = LINE_HEIGHT * Math.max(scene.rows.length, scene.columns.length) + 4;
  drawn.lineWidth = width;
  drawn.bars = scene.columns.map(() => div("bars"));
  drawn.svg = svgBox(width, height, { class: "lines", "aria-hidden": "true" });
  return element(
    "div",
    { class: isSelfAttention(scene.attention) ? "lines-view self" : "lines-view" },
    listenForRows(div("from", ...drawn.rowTokens)),
    element(
      "div",
      { class: "between", style: { width: `${width}px`, height: `${height}px` } },
      drawBackground(scene, width, height),
      drawn.svg,
    ),
    div("to", ...drawn.columnTokens.map((token, column) => div("key-row", token, drawn.bars[column]))),
  );
}

function curvePath(width, row, column) {
  const start = (row + 0.5) * LINE_HEIGHT;
  const end = (column + 0.5) * LINE_HEIGHT;
  return `M0 ${start}C${width * 0.45} ${start} ${width * 0.55} ${end} ${width} ${end}`;
}

// Faint lines of all rows, painted once.
function drawBackground(scene, width, height) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  const context = resizeCanvas(canvas, width, height);
  context.strokeStyle = cssVariable("--soft");
  scene.rows.forEach((_, row) => {
    const weights = queryRow(scene.mean, scene.columns.length, [row]);
    for (const column of smallestSet(weights, state.mass, BACKGROUND_LINES)) {
      context.globalAlpha = 0.05 + 0.28 * weights[column];
      context.lineWidth = 0.6 + 1.6 * weights[column];
      context.stroke(new Path2D(curvePath(width, row, column)));
    }
  });
  return canvas;
}

const lineColour = (scene, headIndex) => (scene.tables.length > 1 ? headColour(headIndex) : "var(--accent)");

// Lines of the selected rows, one colour per head.
function drawLines(scene, queries) {
  const paths = queries.flatMap((row) =>
    scene.tables.flatMap((table, headIndex) => {
      const weights = queryRow(table, scene.columns.length, [row]);
      return smallestSet(weights, state.mass).map((column) =>
        svgElement("path", {
          d: curvePath(drawn.lineWidth, row, column),
          fill: "none",
          stroke: lineColour(scene, headIndex),
          "stroke-linecap": "round",
          "stroke-width": 0.8 + 4.5 * weights[column],
          "stroke-opacity": 0.3 + 0.7 * weights[column],
        }),
      );
    }),
  );
  drawn.svg.replaceChildren(...paths);
}

// Bars beside the columns, one per head, and the mean as a number.
function drawBars(scene, queries, mean) {
  const headRows = scene.tables.map((table) => queryRow(table, scene.columns.length, queries));
  const barElement = (weight, headIndex) => {
    const style = { width: `${Math.round(64 * weight)}px`, background: lineColour(scene, headIndex) };
    return element("i", { style });
  };
  drawn.bars.forEach((box, column) => {
    const hasBars = headRows.some((weights) => weights[column] >= MIN_BAR_WEIGHT);
    const bars = hasBars ? headRows.map((weights, headIndex) => barElement(weights[column], headIndex)) : [];
    const number = mean[column] >= MIN_LABELLED_WEIGHT ? element("span", {}, formatWeight(mean[column])) : "";
    box.replaceChildren(...bars, number);
  });
}

// ---- running text --------------------------------------------------------------------------------------------------

// Tokens as running text; each text of a pair starts on a new line.
export function paragraph(title, text, units, tokens) {
  const startsText = (index) => index && units[index].tokenType !== units[index - 1].tokenType;
  const nodes = tokens.flatMap((token, index) => (startsText(index) ? [element("br"), token] : [token]));
  const box = div("running", element("h3", {}, title));
  for (let start = 0; start < nodes.length; start += CHUNK) {
    const attributes = { dir: text?.dir || "auto", class: nodes.length > CHUNK ? "chunk" : "" };
    box.append(element("p", attributes, ...nodes.slice(start, start + CHUNK)));
  }
  return box;
}

function drawText({ attention, rowText, columnText, rows, columns }) {
  if (isSelfAttention(attention)) {
    const title = "select a token: what it attends to is shaded";
    return listenForRows(div("texts self", paragraph(title, rowText, rows, drawn.rowTokens)));
  }
  return div(
    "texts",
    paragraph("keys: what is attended to", columnText, columns, drawn.columnTokens),
    listenForRows(paragraph("queries", rowText, rows, drawn.rowTokens)),
  );
}
