// Math: attention in six steps with the numbers of one head: query, keys, products, scale, softmax, weighted sum.

import { dot, loadOnce, maxAbs, range, rowSlice, sum } from "./arrays.js";
import { decodeBlock } from "./codec.js";
import { paintPixels, rootLevel, setShade, signedBar, signedLevel } from "./colours.js";
import { ariaBoolean, button, clamp, div, element, fieldLabel, notice, select, smallText, toolbar } from "./dom.js";
import { emptyTable } from "./html-table.js";
import { formatSigned, formatWeight, pluralize, siteName } from "./labels.js";
import { axisUnits, queryRows } from "./selection.js";
import { state, update } from "./state.js";
import { topK } from "./weight-tables.js";

const MAX_KEYS = 14; // keys that get a row
const MAX_SITES = 24; // other heads that are offered
const MASKED_BELOW = -60000; // scores of masked keys
const STEPS = [
  ["query", "The query of the selected token."],
  ["keys", "Every token that the mask allows has a key."],
  ["score", "The dot product of query and key: the more similar they are, the larger it is."],
  ["scale", "The scores are divided by √d_k, the root of the key’s size, so that they do not grow with it."],
  ["softmax", "The softmax turns scores into attention weights that sum to 1."],
  ["sum", "The output of the head: the sum of the values, each multiplied by its weight."],
];
const [, KEYS, SCORE, SCALE, SOFTMAX, SUM] = range(STEPS.length, (index) => index + 1);
const walkthrough = { step: SUM, tooltip: null };

// ---- numbers -------------------------------------------------------------------------------------------------------

// Queries, keys and values of the selected head, if the record has them.
function findQkv(record) {
  return (record.qkv || []).find(
    ({ attention, layer, head }) => attention === state.attention && layer === state.layer && head === state.heads[0],
  );
}

function loadQkv(block, redraw) {
  const load = async () => {
    const decode = (name) => block[name] && decodeBlock(block[name]);
    const [queries, keys, values, scores] = await Promise.all(["q", "k", "v", "scores"].map(decode));
    return { queries, keys, values, scores, keySize: block.q.shape[1], valueSize: block.v?.shape[1] || 0 };
  };
  return loadOnce(block, load, redraw);
}

// The numbers of all six steps for one query. Stored scores take precedence: they include masks and biases.
function attentionSteps({ queries, keys, values, scores: stored, keySize, valueSize }, queryIndex, keyCount) {
  const query = rowSlice(queries, queryIndex, keySize);
  const products = range(keyCount, (key) => dot(query, rowSlice(keys, key, keySize)));
  const scaled = products.map((product) => product / Math.sqrt(keySize));
  const scores = stored ? Array.from(rowSlice(stored, queryIndex, keyCount)) : scaled;
  const allowed = scores.map((score) => score > MASKED_BELOW);
  const maxScore = Math.max(...scores.filter((_, key) => allowed[key]));
  const exponentials = scores.map((score, key) => (allowed[key] ? Math.exp(score - maxScore) : 0));
  const total = sum(exponentials);
  const weights = exponentials.map((exponential) => exponential / total);
  const output = new Float32Array(valueSize);
  if (values) {
    weights.forEach((weight, key) =>
      rowSlice(values, key, valueSize).forEach((value, index) => {
        output[index] += weight * value;
      }),
    );
  }
  const isClose = (left, right) => Math.abs(left - right) < 0.02 * (1 + Math.abs(right));
  const isScaledDot = scaled.every((score, key) => !allowed[key] || isClose(score, scores[key]));
  return { query, products, scores, allowed, weights, output, isScaledDot };
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
  const { keys, values, keySize, valueSize } = qkv;
  const { query } = steps;
  const keyVector = rowSlice(keys, key, keySize);
  const value = values && rowSlice(values, key, valueSize);
  const weight = steps.weights[key];
  const describeProduct = (index) => {
    const factors = `${formatSigned(query[index])} × ${formatSigned(keyVector[index])}`;
    return `q[${index}] · k[${index}] = ${factors} = ${formatSigned(query[index] * keyVector[index])}`;
  };
  const describeValue = (index) =>
    `${formatWeight(weight)} × ${formatSigned(value[index])} = ${formatSigned(weight * value[index])}`;
  const weighted = () =>
    vectorStrip(
      value.map((number) => number * weight),
      maxValue,
      describeValue,
    );
  const weightCell = setShade(element("span", { class: "weight" }, formatWeight(weight)), rootLevel(weight));
  return element(
    "tr",
    { class: steps.allowed[key] ? "" : "masked" },
    element("th", { scope: "row", dir: "auto" }, label.slice(0, 40)),
    stepCell(KEYS, "td", vectorStrip(keyVector, maxKey, describeProduct)),
    stepCell(SCORE, "td", steps.products[key].toFixed(2)),
    stepCell(SCALE, "td", steps.allowed[key] ? steps.scores[key].toFixed(2) : "masked"),
    stepCell(SOFTMAX, "td", weightCell),
    stepCell(SUM, "td", values ? weighted() : ""),
  );
}

function keyTable(qkv, steps, keyUnits, keyIndices) {
  const maxima = { maxKey: maxAbs(qkv.keys), maxValue: maxAbs(qkv.values || []) };
  const names = ["key", "q · k", steps.isScaledDot ? `÷ √${qkv.keySize}` : "score", "weight", "× value"];
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

function stepButtons(redraw) {
  const items = STEPS.map(([name, meaning], index) => {
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

function explanation(isScaledDot) {
  const otherScore = " This head uses another score, or adds a bias: its own scores are shown.";
  const addition = walkthrough.step === SCALE && !isScaledDot ? otherScore : "";
  return element("p", { class: "explanation" }, STEPS[walkthrough.step - 1][1], addition);
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
    const keyIndices = topK(steps.weights, MAX_KEYS).sort((left, right) => left - right);
    const rest = 1 - sum(keyIndices.map((key) => steps.weights[key]));
    const hidden = keys.length - keyIndices.length;
    const hasOutput = walkthrough.step >= SUM && qkv.values;
    walkthrough.tooltip = element("p", { class: "note tip-line" }, " ");
    stage.replaceChildren(
      stepButtons(redraw),
      explanation(steps.isScaledDot),
      vectorLine(rows[queryIndex].label.slice(0, 40), steps.query, `query, ${qkv.keySize} numbers`, "q"),
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
    const { products, scores, allowed, weights } = attentionSteps(qkv, queryIndex, keys.length);
    const score = (key) => (allowed[key] ? scores[key].toFixed(3) : "masked");
    return {
      caption: `Scores and weights of the query ${rows[queryIndex].label}`,
      head: ["key", "q · k", "score", "weight"],
      rows: keys.map((unit, key) => [unit.label, products[key].toFixed(3), score(key), formatWeight(weights[key])]),
    };
  },
  onSpace(redraw) {
    walkthrough.step = (walkthrough.step % STEPS.length) + 1;
    redraw();
  },
};
