// What the state selects in the open record: texts as rows and columns, the tables of the selected heads, query rows.

import { cycle, memoized } from "./arrays.js";
import { clamp } from "./dom.js";
import { textUnits } from "./labels.js";
import { state } from "./state.js";
import { findBlock, headWeights, thumbnails } from "./weight-cache.js";
import { average, mergeSubwords, normalizeTable, NORMS, queryRow } from "./weight-tables.js";

const PREFETCH_BUDGET = 5; // milliseconds of work before the page may respond again

export const current = { record: null, other: null }; // the open record, and the one it is compared with

export function selectAttention(record, name = state.attention) {
  return record.attention.find((attention) => attention.name === name) || record.attention[0];
}

export const isSelfAttention = (attention) => attention.rows === attention.columns;

// The texts of an attention's rows and columns, and their units (words or tokens).
export function axisUnits(record, attention, unit = state.unit, specials = state.specials) {
  const rowText = record.texts[attention.rows];
  const columnText = record.texts[attention.columns];
  const byWord = unit === "word";
  return {
    rowText,
    columnText,
    rows: textUnits(rowText, byWord, specials),
    columns: textUnits(columnText, byWord, specials),
  };
}

// The tables of heads; null while weights are loading; throws if some are unavailable.
export function headTables(record, attention, layer, heads, axes, onLoad) {
  const headMatrices = heads.map((head) => headWeights(attention, layer, head, onLoad));
  const error = headMatrices.find((weights) => weights instanceof Error);
  if (error) throw error;
  if (headMatrices.includes(null)) return null;
  const { rows, columns, columnText } = axes;
  return headMatrices.map((weights, index) =>
    memoized(weights, rows, () => {
      const shift = alignmentShift(record, attention, layer, heads[index]);
      const shifted = shift ? shiftRows(weights, axes, shift) : weights;
      return mergeSubwords(shifted, columnText.tokens.length, rows, columns);
    }),
  );
}

// The best alignment head may attend to a token's origin only once the token is the input: its rows are then read this
// many steps later.
function alignmentShift(record, attention, layer, head) {
  const best = record.view?.best;
  const isBest = best && best.attention === attention.name && best.layer === layer && best.head === head;
  return isBest && attention.row_meaning === "generated" ? record.view.shift || 0 : 0;
}

function shiftRows(weights, { rowText, columnText }, steps) {
  const shifted = new Float32Array(weights.length);
  const width = columnText.tokens.length;
  rowText.special.forEach((isSpecial, row) => {
    if (!isSpecial) shifted.set(weights.subarray((row + steps) * width, (row + steps + 1) * width), row * width);
  });
  return shifted;
}

const emptyScene = (record) => ({
  record,
  attention: null,
  rows: [],
  columns: [],
  tables: [],
  mean: new Float32Array(0),
  normalized: new Float32Array(0),
});

// Everything that views draw; null while weights are loading.
export function buildScene(onLoad) {
  const { record } = current;
  const { layer, heads } = state;
  const attention = selectAttention(record);
  if (!attention) return emptyScene(record);
  const axes = axisUnits(record, attention);
  const tables = headTables(record, attention, layer, heads, axes, onLoad);
  if (!tables) return null;
  const mean = average(tables);
  return {
    record,
    attention,
    ...axes,
    layer,
    heads,
    tables, // one per head
    mean, // over heads
    normalized: normalizeTable(mean, axes.columns, state.norm),
    shift: heads.length === 1 && alignmentShift(record, attention, layer, heads[0]),
  };
}

const lastMove = {};

// Neighbours of a head as [layer, heads], the one in the direction of the last move first.
function neighbours({ attention, layer, heads }) {
  const layerIndex = attention.layers.indexOf(layer);
  const head = heads[0];
  if (lastMove.layerIndex !== layerIndex || lastMove.head !== head) {
    const step = `${layerIndex - lastMove.layerIndex},${head - lastMove.head}`;
    Object.assign(lastMove, { layerIndex, head, step });
  }
  const steps = [
    [0, 1],
    [-1, 0],
    [0, -1],
    [1, 0],
  ];
  steps.sort((left, right) => (`${right}` === lastMove.step) - (`${left}` === lastMove.step));
  return steps.map(([up, along]) => [attention.layers[layerIndex + up], along ? [head + along] : heads]);
}

// Loads and prepares what may be selected next, while the page is idle: the head under the pointer, the neighbours of
// the current head, the other unit (words or tokens), thumbnails, the next normalization. It stops after a few
// milliseconds of work; `resume` is called to continue.
export function prefetch(scene, resume, prerender) {
  const { record, attention, layer, heads } = scene;
  const otherAxes = axisUnits(record, attention, state.unit === "word" ? "subword" : "word");
  const targets = [...state.hoveredHeads, ...neighbours(scene), [layer, heads, otherAxes]];
  for (const [targetLayer, targetHeads, axes = scene] of targets) {
    if (!targetHeads.every((head) => findBlock(attention, targetLayer, head))) continue;
    const start = performance.now();
    const yieldIfLate = () => performance.now() - start > PREFETCH_BUDGET && resume();
    const tables = headTables(record, attention, targetLayer, targetHeads, axes, resume);
    if (!tables || yieldIfLate()) return;
    if (!tables[1]) prerender?.(normalizeTable(tables[0], axes.columns, state.norm), axes);
    if (yieldIfLate()) return;
  }
  thumbnails(attention, resume);
  normalizeTable(scene.mean, scene.columns, cycle(Object.keys(NORMS), state.norm));
}

// The selected rows: the pinned ones, else the one that is pointed at.
export function queryRows(scene) {
  const pins = state.pins.filter((row) => row < scene.rows.length);
  return pins.length ? pins : [clamp(state.query, 0, Math.max(0, scene.rows.length - 1))];
}

export const selectedRow = (scene, table = scene.normalized) => queryRow(table, scene.columns.length, queryRows(scene));

// The selection in other units: rows that contain the same tokens.
export function remapSelection(scene, unit, specials = state.specials) {
  const { rows } = axisUnits(scene.record, scene.attention, unit, specials);
  const remap = (row) => {
    const token = scene.rows[row]?.members[0];
    const index = rows.findIndex((candidate) => candidate.members.includes(token));
    return Math.max(0, index);
  };
  return { query: remap(state.query), pins: [...new Set(state.pins.map(remap))], key: -1 };
}
