// The inspector: the weights of the selected query in numbers, the selected head, the scale.

import { sum } from "./arrays.js";
import { headColour, scaleBar } from "./colours.js";
import { barList, div, element, fieldLabel, segmentedControl, select, smallText, toolbar } from "./dom.js";
import { headLabel, isBestHead } from "./head-map.js";
import { escapeInvisible, formatPercent, formatWeight, pluralize, siteName } from "./labels.js";
import { queryRows, remapSelection, selectedRow } from "./selection.js";
import { state, update } from "./state.js";
import { term, TERMS } from "./terms.js";
import { entropy, NORMS, topK } from "./weight-tables.js";

const MAX_WEIGHTS = 10;
const MIN_WEIGHT = 0.004; // that is listed
const ANNOUNCED_WEIGHTS = 3;
const ANNOUNCE_DELAY = 90; // milliseconds
const parts = {}; // elements that follow the selection: query, note, weights

const section = (title, ...children) => element("section", {}, title ? element("h2", {}, title) : "", ...children);

export function drawInspector(box, scene) {
  const omitted = omittedSection(scene.record);
  if (!scene.attention) {
    box.replaceChildren(omitted);
    return;
  }
  parts.query = element("p", { class: "query-label", dir: "auto" });
  parts.note = smallText();
  parts.weights = div("query-weights");
  box.replaceChildren(
    section("", parts.query, parts.note, parts.weights),
    headSection(scene),
    scaleSection(scene),
    omitted,
  );
}

// What was left out of the record, and why.
function omittedSection(record) {
  const entries = [record.omissions || []].flat().filter((entry) => entry.dropped || entry.reason);
  if (!entries.length) return "";
  const notes = entries.map(({ dropped, reason }) => smallText(escapeInvisible(`${dropped}: ${reason}`)));
  return section("Omitted", ...notes);
}

function headSection({ attention, layer, heads }) {
  const layerIndex = attention.layers.indexOf(layer);
  const hasSeveral = heads.length > 1;
  const sites = heads.map((head, index) => {
    const label = headLabel(attention, layerIndex, head);
    const star = isBestHead(attention, layer, head) ? " ★" : "";
    return element(
      "span",
      { class: "site" },
      hasSeveral ? element("i", { class: "dot", style: { background: headColour(index) } }) : "",
      siteName(attention, layer, head),
      element("span", { class: "note" }, ` ${label}${star}`),
    );
  });
  const title = hasSeveral ? `${pluralize(heads.length, "head")}, averaged` : term("head", "Head");
  return section(title, div("sites", ...sites));
}

function scaleSection(scene) {
  const norms = Object.entries(NORMS).map(([norm, [label]]) => [label, norm]);
  const units = [
    ["Words", "word", "merge the subwords of a word: columns are summed, rows averaged (w)"],
    ["Subwords", "subword", TERMS.subword],
  ];
  const specialOptions = [
    ["All tokens", true, `special tokens are shown. ${TERMS["special tokens"]} (x)`],
    ["No special", false, "special tokens are hidden (x)"],
  ];
  const selectUnit = (unit) => update({ unit, ...remapSelection(scene, unit) });
  const selectSpecials = (specials) => update({ specials, ...remapSelection(scene, state.unit, specials) });
  return section(
    "Scale",
    weightScale(state.norm),
    fieldLabel(
      term("attention weights", "Weights"),
      " ",
      select("normalisation", norms, state.norm, (norm) => update({ norm }), "normalisation of the weights (n)"),
    ),
    smallText(`${NORMS[state.norm][1]}. A weight of zero has the colour of the background.`),
    toolbar(
      segmentedControl("words or subwords", units, state.unit, selectUnit),
      segmentedControl("special tokens", specialOptions, state.specials, selectSpecials),
    ),
  );
}

function weightScale(norm) {
  const isLinear = norm === "linear";
  const ticks = isLinear ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.05, 0.25, 0.5, 1];
  const position = (weight) => (isLinear ? weight : Math.sqrt(weight));
  return scaleBar(
    "weights",
    ticks.map((weight) => [position(weight), String(weight).replace("0.", ".")]),
  );
}

function queryNote({ attention, shift }, isDistribution, weights) {
  const generated = attention.row_meaning === "generated" ? "while this token is generated, it " : "";
  const moment = shift ? "after this token was generated, it " : generated;
  const bits = isDistribution ? [" (", term("entropy"), ` ${entropy(weights).toFixed(1)} bits)`] : [];
  return [`${moment}attends to`, ...bits];
}

// Shows the weights of the selected row and announces them.
export function markInspector(scene, live) {
  if (!scene.attention || !scene.rows.length) return;
  const weights = selectedRow(scene);
  const isDistribution = state.norm !== "max";
  const total = isDistribution ? sum(weights) : 1;
  const top = topK(weights, MAX_WEIGHTS).filter((column) => weights[column] >= MIN_WEIGHT);
  const otherCount = scene.columns.length - top.length;
  const name = queryRows(scene)
    .map((row) => scene.rows[row].label)
    .join(" ")
    .slice(0, 120);
  const items = top.map((column) => ({
    ...scene.columns[column],
    value: formatWeight(weights[column]),
    share: weights[column] / (total || 1),
  }));
  const rest = Math.max(0, total - sum(top.map((column) => weights[column])));
  const hasRest = otherCount && isDistribution;
  parts.query.textContent = name;
  parts.note.replaceChildren(...queryNote(scene, isDistribution, weights));
  parts.weights.replaceChildren(
    barList(items, "attended to"),
    hasRest ? smallText(`+ ${pluralize(otherCount, "other")}, ${formatPercent(rest)}`) : "",
  );
  const largest = items.slice(0, ANNOUNCED_WEIGHTS).map(({ label, value }) => `${label.slice(0, 60)} ${value}`);
  const heads = `layer ${scene.layer} head ${scene.heads.join(", ")}`;
  announce(live, `${name} attends to ${largest.join(", ") || "nothing"}; ${heads}`);
}

let announceTimer = 0;

// Tells screen readers once the pointer rests.
export function announce(live, text) {
  clearTimeout(announceTimer);
  announceTimer = setTimeout(() => {
    live.textContent = text;
  }, ANNOUNCE_DELAY);
}
