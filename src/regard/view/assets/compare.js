// Compare: two records side by side and their difference: two inputs, two models, or two steps of a training.

import { maxAbs, sum } from "./arrays.js";
import { signedBar, signedLevel } from "./colours.js";
import { div, element, fieldLabel, notice, select, slider, smallText, titledBlock, toolbar } from "./dom.js";
import { Heatmap, hoverCell } from "./heatmap.js";
import { emptyTable, weightTable } from "./html-table.js";
import { escapeInvisible, formatPercent, formatWeight } from "./labels.js";
import { labelBars } from "./prediction.js";
import { axisUnits, current, headTables, isSelfAttention } from "./selection.js";
import { state, update } from "./state.js";
import { store } from "./store.js";
import { average, normalizeTable } from "./weight-tables.js";

const MAX_NAME = 60;
const MAP_HEIGHT = 340;
const drawn = { heatmaps: [] }; // [heatmap, rows, columns]

// The step or epoch of a training that a record was made at.
const trainingTime = ({ provenance = {} }) => provenance.step ?? provenance.epoch;
const sourceText = (record) => record.source ?? record.texts?.source?.text ?? record.title;

export function recordName(record) {
  const provenance = record.provenance || {};
  const text = escapeInvisible(record.title || sourceText(record) || record.id || "");
  const time = trainingTime(record);
  const facts = [
    provenance.model,
    time !== undefined && `@ ${time}`,
    provenance.ablated?.length && `without ${provenance.ablated}`,
  ];
  const origin = facts.filter(Boolean).join(" ");
  const ellipsis = text.length > MAX_NAME ? "…" : "";
  return `${text.slice(0, MAX_NAME)}${ellipsis}${origin ? ` · ${escapeInvisible(origin)}` : ""}`;
}

// Indices of the records of this text at several times of a training, in order; empty if there is only one.
function trainingRecords() {
  const { records } = store;
  const source = sourceText(records[state.record]);
  const indices = [...records.keys()].filter(
    (index) => sourceText(records[index]) === source && trainingTime(records[index]) !== undefined,
  );
  if (indices.length < 2) return [];
  return indices.sort((left, right) => trainingTime(records[left]) - trainingTime(records[right]));
}

function trainingSlider() {
  const indices = trainingRecords();
  if (!indices.length) return "";
  const timeLabel = (position) => `${trainingTime(store.records[indices[position]])}`;
  const position = indices.indexOf(state.record);
  const output = element("output", {}, timeLabel(position));
  const control = slider("training step or epoch", position, indices.length - 1, (moved) => {
    output.textContent = timeLabel(moved);
    update({ record: indices[moved] });
  });
  return fieldLabel("training step or epoch ", control, output);
}

// The table of the selected heads in a record: {attention, rows, columns, …, values} or {message}.
function recordTable(record, redraw) {
  const attention = record.attention.find(({ name }) => name === state.attention);
  if (!attention) return { message: `This record has no ${escapeInvisible(state.attention)}.` };
  const axes = axisUnits(record, attention);
  const layer = attention.layers.includes(state.layer) ? state.layer : attention.layers.at(-1);
  const heads = state.heads.map((head) => Math.min(head, attention.heads - 1));
  const tables = headTables(record, attention, layer, heads, axes, redraw);
  if (!tables) return { message: "loading …" };
  return { attention, ...axes, values: normalizeTable(average(tables), axes.columns, state.norm) };
}

const haveSameLabels = (left, right) =>
  left.length === right.length && left.every((unit, index) => unit.label === right[index].label);

const areComparable = (left, right) =>
  left.values && right.values && haveSameLabels(left.rows, right.rows) && haveSameLabels(left.columns, right.columns);

const subtract = (left, right) => left.values.map((value, index) => value - right.values[index]);

function tableHeatmap({ attention, columnText, rows, columns, values, message }, name, width, options = {}) {
  if (!values) return notice(message);
  const heatmap = new Heatmap({
    rows,
    columns,
    values,
    width,
    height: MAP_HEIGHT,
    isSelfAttention: isSelfAttention(attention),
    isMirrored: columnText.dir === "rtl",
    name,
    onHover: (row, column) => {
      hoverCell(row, column);
      markAll(row, column);
    },
    ...options,
  });
  drawn.heatmaps.push([heatmap, rows.length, columns.length]);
  return heatmap.element;
}

function markAll(row, column) {
  drawn.heatmaps.forEach(([heatmap, rowCount, columnCount]) =>
    heatmap.mark(row < rowCount ? row : -1, column < columnCount ? column : -1),
  );
}

function resultSummary({ prediction, texts: { target } }) {
  if (prediction?.labels) return labelBars(prediction);
  if (!target) return "";
  return element("p", { class: "output-text", dir: target.dir || "auto" }, escapeInvisible(target.text).slice(0, 400));
}

function differenceMap(left, right, width) {
  if (!left.values || !right.values) return "";
  if (!areComparable(left, right)) {
    return smallText("The two records have different tokens, so their difference cannot be drawn.");
  }
  const values = subtract(left, right);
  const max = maxAbs(values, 0.05);
  const moved = sum(values.map(Math.abs)) / 2 / Math.max(1, left.rows.length);
  const options = { level: signedLevel(max), ramp: "signed" };
  return titledBlock(
    "first minus second",
    tableHeatmap({ ...left, values }, "difference, first minus second", width, options),
    signedBar(formatWeight(max)),
    smallText(`On average, ${formatPercent(moved)} of a row’s attention has moved to other columns.`),
  );
}

function compareControls() {
  const others = store.records
    .map((record, index) => [recordName(record), index])
    .filter(([, index]) => index !== state.record);
  const options = [["select …", -1], ...others];
  const selectOther = (index) => update({ comparedWith: index });
  return toolbar(
    fieldLabel(
      "with ",
      select("compare with", options, state.comparedWith, selectOther, "record to compare this one with"),
    ),
    trainingSlider(),
  );
}

export const compare = {
  key: "compare",
  name: "Compare",
  term: "difference of two records",
  summary: "the same head in two records: two inputs, two models or two checkpoints.",
  description:
    "Both matrices, and the first minus the second: orange cells have more weight in the first record, blue cells in the second. The difference needs the same tokens in both. Records of a training have a slider over its steps.",
  missing: (record) =>
    !record.attention.length || store.records.length > 1
      ? ""
      : "There is only one record: pass two texts or two models to regard see, or a run with snapshots of attention.",
  draw(stage, scene, redraw) {
    drawn.heatmaps = [];
    const { record, other } = current;
    if (!other) {
      stage.replaceChildren(compareControls(), smallText("Select the record to compare with."));
      return;
    }
    const left = recordTable(record, redraw);
    const right = recordTable(other, redraw);
    const width = stage.clientWidth > 684 ? (stage.clientWidth - 24) / 2 : stage.clientWidth;
    stage.replaceChildren(
      compareControls(),
      div(
        "pair",
        titledBlock(
          recordName(store.records[state.record]),
          resultSummary(record),
          tableHeatmap(left, "first record", width),
        ),
        titledBlock(
          recordName(store.records[state.comparedWith]),
          resultSummary(other),
          tableHeatmap(right, "second record", width),
        ),
      ),
      differenceMap(left, right, width),
    );
    drawn.heatmaps.forEach(([heatmap]) => heatmap.layout());
    this.mark();
  },
  mark: () => markAll(state.query, state.key),
  table() {
    if (!current.other) return emptyTable("No record is selected to compare with");
    const left = recordTable(current.record, () => {});
    const right = recordTable(current.other, () => {});
    if (!areComparable(left, right)) return emptyTable("The two records have different tokens");
    return weightTable("Difference: first minus second", left.rows, left.columns, subtract(left, right));
  },
};
