// Math: attention in six steps with the numbers of one head: query, keys, scores, scale, weights, weighted sum.

import { dot, loadOnce, maxAbs, range, rowSlice, sum } from "./arrays.js";
import { decodeBlock } from "./codec.js";
import { paintPixels, rootLevel, setShade, signedBar, signedLevel } from "./colours.js";
import { ariaBoolean, button, clamp, div, element, fieldLabel, notice, select, smallText, toolbar } from "./dom.js";
import { emptyTable } from "./html-table.js";
import { formatSigned, formatWeight, pluralize, siteName } from "./labels.js";
import { axisUnits, queryRows } from "./selection.js";
import { state, update } from "./state.js";

const MAX_KEYS = 14; // keys that get a row
const MAX_SITES = 24; // other heads that are offered
const MASKED_BELOW = -60000; // scores of masked keys
const NUM_STEPS = 6;
const [, KEYS, SCORE, SCALE, WEIGHT, SUM] = range(NUM_STEPS, (index) => index + 1);
const walkthrough = { step: SUM, tooltip: null };
const NORMALIZATIONS = {
  softmax: "The softmax turns scores into attention weights that sum to 1.",
  sparsemax: "Sparsemax turns scores into attention weights that sum to 1; most are zero.",
  uniform: "All visible keys get the same weight, whatever their scores.",
};

const isDotProduct = ({ scale }) => scale !== null;
const scoreName = (block) => (isDotProduct(block) ? "q · k" : "score");

function scaleMeaning({ scaling }) {
  const bias = scaling.endsWith("bias") ? " A bias is added to each." : "";
  if (scaling.startsWith("÷")) {
    return `The scores are divided by √d_k, the root of the key’s size, so that they do not grow with it.${bias}`;
  }
  const scales = scaling.startsWith("no") ? "does not scale its scores" : "scales its scores by another factor";
  return `This model ${scales}.${bias}`;
}

// Name and meaning of each step.
const describeSteps = (block) => [
  ["query", "The query of the selected token."],
  ["keys", "Every token that the mask allows has a key."],
  [
    "score",
    isDotProduct(block)
      ? "The dot product of query and key: the more similar they are, the larger it is."
      : "A score of query and key that is no dot product.",
  ],
  ["scale", scaleMeaning(block)],
  [block.normalization, NORMALIZATIONS[block.normalization] || "The scores are turned into attention weights."],
  ["sum", "The output of the head: the sum of the values, each multiplied by its weight."],
];

// ---- numbers -------------------------------------------------------------------------------------------------------

// Queries, keys and values of the selected head, if the record has them.
function findQkv(record) {
  return (record.qkv || []).find(
    ({ attention, layer, head }) => attention === state.attention && layer === state.layer && head === state.heads[0],
  );
}

function loadQkv(block, redraw) {
  const load = async () => {
    const names = ["q", "k", "v", "scores", "weights"];
    const [queries, keys, values, scores, weights] = await Promise.all(names.map((name) => decodeBlock(block[name])));
    const [querySize, keySize, valueSize] = names.map((name) => block[name].shape[1]);
    return { block, queries, keys, values, scores, weights, querySize, keySize, valueSize };
  };
  return loadOnce(block, load, redraw);
}

// The numbers of all steps for one query.
function attentionSteps(qkv, queryIndex, keyCount) {
  const { block, keys, values, querySize, keySize, valueSize } = qkv;
  const query = rowSlice(qkv.queries, queryIndex, querySize);
  const scores = Array.from(rowSlice(qkv.scores, queryIndex, keyCount));
  const weights = Array.from(rowSlice(qkv.weights, queryIndex, keyCount));
  const allowed = scores.map((score) => score > MASKED_BELOW);
  const unscaled = scores.map((score, key) =>
    isDotProduct(block) ? dot(query, rowSlice(keys, key, keySize)) : score * block.temperature,
  );
  const output = new Float32Array(valueSize);
  weights.forEach((weight, key) =>
    rowSlice(values, key, valueSize).forEach((value, index) => {
      output[index] += weight * value;
    }),
  );
  return { query, unscaled, scores, allowed, weights, output };
}

// The keys of the largest weights, then scores.
function shownKeys({ scores, weights }) {
  const largestFirst = range(weights.length).sort(
    (left, right) => weights[right] - weights[left] || scores[right] - scores[left],
  );
  return largestFirst.slice(0, MAX_KEYS).sort((left, right) => left - right);
}

// Math is shown for tokens: the first one of the selected word.
function selectedQuery(scene) {
  const { rows, columns } = axisUnits(scene.record, scene.attention, "subword", true);
  return { rows, keys: columns, queryIndex: scene.rows[queryRows(scene)[0]]?.members[0] ?? 0 };
}

// ---- drawing -------------------------------------------------------------------------------------------------------

// A vector as a strip of colours; `describe(index)` is the tooltip of an element.
function vectorStrip(values, max, describe) {
  const canvas = paintPixels(values, 1, values.length, signedLevel(max), "signed");
  const min = formatSigned(Math.min(...values));
  canvas.className = "vector";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${values.length} numbers from ${min} to ${formatSigned(Math.max(...values))}`);
  canvas.addEventListener("pointermove", (event) => {
    const bounds = canvas.getBoundingClientRect();
    const index = Math.floor(((event.clientX - bounds.left) / bounds.width) * values.length);
    walkthrough.tooltip.textContent = describe(clamp(index, 0, values.length - 1));
  });
  return canvas;
}

function vectorLine(label, values, description, symbol) {
  const describe = (index) => `${symbol}[${index}] = ${formatSigned(values[index])}`;
  return div(
    "vector-line",
    element("span", { class: "query-label", dir: "auto" }, label),
    vectorStrip(values, maxAbs(values), describe),
    element("span", { class: "note" }, description),
  );
}

// Buttons for the heads whose queries and keys the record has.
function otherHeads(record) {
  const findAttention = (name) => record.attention.find((attention) => attention.name === name) || { name };
  const buttons = record.qkv.slice(0, MAX_SITES).map(({ attention, layer, head }) =>
    button(siteName(findAttention(attention), layer, head), () => update({ attention, layer, heads: [head] }), {
      title: "the six steps of this head",
    }),
  );
  const message =
    "The record does not contain queries and keys of this head: they are large, and stored only on request (--store-qkv). It contains:";
  return [notice(message), toolbar(...buttons)];
}

const stepCell = (step, tag, ...children) =>
  element(tag, { class: walkthrough.step < step ? "upcoming" : "" }, ...children);

function keyRow(qkv, steps, key, label, { maxKey, maxValue }) {
  const { block, keys, values, keySize, valueSize } = qkv;
  const { query } = steps;
  const keyVector = rowSlice(keys, key, keySize);
  const value = rowSlice(values, key, valueSize);
  const weight = steps.weights[key];
  const describeKey = (index) => {
    if (!isDotProduct(block)) return `k[${index}] = ${formatSigned(keyVector[index])}`;
    const factors = `${formatSigned(query[index])} × ${formatSigned(keyVector[index])}`;
    return `q[${index}] · k[${index}] = ${factors} = ${formatSigned(query[index] * keyVector[index])}`;
  };
  const describeValue = (index) =>
    `${formatWeight(weight)} × ${formatSigned(value[index])} = ${formatSigned(weight * value[index])}`;
  const weighted = value.map((number) => number * weight);
  const number = (values) => (steps.allowed[key] ? values[key].toFixed(2) : "masked");
  const weightCell = setShade(element("span", { class: "weight" }, formatWeight(weight)), rootLevel(weight));
  return element(
    "tr",
    { class: steps.allowed[key] ? "" : "masked" },
    element("th", { scope: "row", dir: "auto" }, label.slice(0, 40)),
    stepCell(KEYS, "td", vectorStrip(keyVector, maxKey, describeKey)),
    stepCell(SCORE, "td", isDotProduct(block) ? steps.unscaled[key].toFixed(2) : number(steps.unscaled)),
    stepCell(SCALE, "td", number(steps.scores)),
    stepCell(WEIGHT, "td", weightCell),
    stepCell(SUM, "td", vectorStrip(weighted, maxValue, describeValue)),
  );
}

function keyTable(qkv, steps, keyUnits, keyIndices) {
  const { block } = qkv;
  const maxima = { maxKey: maxAbs(qkv.keys), maxValue: maxAbs(qkv.values) };
  const names = ["key", scoreName(block), block.scaling, "weight", "× value"];
  const headCells = names.map((name, index) => stepCell(KEYS + index, "th", name));
  const bodyRows = keyIndices.map((key) => keyRow(qkv, steps, key, keyUnits[key].label, maxima));
  return div(
    "table-box",
    element(
      "table",
      { class: "math-table" },
      element("thead", {}, element("tr", {}, element("th"), ...headCells)),
      element("tbody", {}, ...bodyRows),
    ),
  );
}

function stepButtons(block, redraw) {
  const items = describeSteps(block).map(([name, meaning], index) => {
    const onclick = () => {
      walkthrough.step = index + 1;
      redraw();
    };
    const isPressed = ariaBoolean(walkthrough.step === index + 1);
    return element(
      "li",
      {},
      element("button", { title: meaning, "aria-pressed": isPressed, onclick }, `${index + 1} ${name}`),
    );
  });
  return element("ol", { class: "math-steps" }, ...items);
}

function tokenSelect(scene, rows, queryIndex) {
  const options = rows.map((unit, index) => [unit.label.slice(0, 40), index]);
  const selectToken = (token) => {
    const row = scene.rows.findIndex((unit) => unit.members.includes(token));
    update({ query: Math.max(0, row), pins: [] });
  };
  return select("query token", options, queryIndex, selectToken, "token whose query is used (← →)");
}

// ---- the view ------------------------------------------------------------------------------------------------------

export const math = {
  key: "math",
  name: "Math",
  term: "scaled dot-product attention",
  summary: "from query, key and value to the output of a head in six steps, with this model’s numbers.",
  description:
    "Each coloured strip is a vector: orange is positive, blue negative. Space goes to the next step; point at a strip to read its numbers and products. The steps are shown for one token and one head; the keys of the largest weights have a row each.",
  missing: (record) =>
    record.qkv?.length
      ? ""
      : "This record does not contain the queries, keys and values of its heads: they are large, and stored only on request (--store-qkv).",
  draw(stage, scene, redraw) {
    const block = findQkv(scene.record);
    if (!block) {
      stage.replaceChildren(...otherHeads(scene.record));
      return;
    }
    const qkv = loadQkv(block, redraw);
    if (!qkv) {
      stage.replaceChildren(smallText("loading …"));
      return;
    }
    const { rows, keys, queryIndex } = selectedQuery(scene);
    const steps = attentionSteps(qkv, queryIndex, keys.length);
    const keyIndices = shownKeys(steps);
    const rest = 1 - sum(keyIndices.map((key) => steps.weights[key]));
    const hidden = keys.length - keyIndices.length;
    const hasOutput = walkthrough.step >= SUM;
    walkthrough.tooltip = element("p", { class: "note tip-line" }, " ");
    stage.replaceChildren(
      stepButtons(block, redraw),
      element("p", { class: "explanation" }, describeSteps(block)[walkthrough.step - 1][1]),
      vectorLine(rows[queryIndex].label.slice(0, 40), steps.query, `query, ${qkv.querySize} numbers`, "q"),
      keyTable(qkv, steps, keys, keyIndices),
      hidden > 0 ? smallText(`+ ${pluralize(hidden, "other key")}: ${formatWeight(rest)} of the weight`) : "",
      hasOutput ? vectorLine("Σ", steps.output, "output of the head", "sum") : "",
      walkthrough.tooltip,
      signedBar("+", "−"),
      toolbar(
        button("Next step", () => this.onSpace(redraw), { title: "next of the six steps (Space)" }),
        fieldLabel("query ", tokenSelect(scene, rows, queryIndex)),
      ),
    );
  },
  mark: (scene, redraw) => redraw(),
  table(scene) {
    const block = findQkv(scene.record);
    const qkv = block && loadQkv(block, () => {});
    if (!qkv) return emptyTable("The record does not contain queries and keys of this head");
    const { rows, keys, queryIndex } = selectedQuery(scene);
    const { unscaled, scores, allowed, weights } = attentionSteps(qkv, queryIndex, keys.length);
    const number = (values, key) => (allowed[key] ? values[key].toFixed(3) : "masked");
    return {
      caption: `Scores and weights of the query ${rows[queryIndex].label}`,
      head: ["key", scoreName(block), block.scaling, "weight"],
      rows: keys.map((unit, key) => [
        unit.label,
        number(unscaled, key),
        number(scores, key),
        formatWeight(weights[key]),
      ]),
    };
  },
  onSpace(redraw) {
    walkthrough.step = (walkthrough.step % NUM_STEPS) + 1;
    redraw();
  },
};
