// The head map: one square per head below every view. A click selects a head; shift-click or dragging adds one.

import { range } from "./arrays.js";
import { HEAD_COLOURS, headColour, rootLevel, setShade } from "./colours.js";
import {
  ariaBoolean,
  arrowStep,
  clamp,
  element,
  fieldLabel,
  root,
  segmentedControl,
  select,
  smallText,
  toolbar,
} from "./dom.js";
import { attentionMeaning, attentionName, escapeInvisible, pluralize, siteName } from "./labels.js";
import { current, selectAttention } from "./selection.js";
import { state, update } from "./state.js";
import { term, TERMS } from "./terms.js";

// Name, and the term that explains it.
const METRICS = {
  entropy: ["entropy", "entropy"],
  distance: ["distance", "distance"],
  special: ["weight on special tokens", "special tokens"],
  importance: ["importance", "importance"],
};

export const metricName = (metric) => METRICS[metric][0];
const metricTerm = (metric) => term(METRICS[metric][1], metricName(metric));

// Values of a metric by layer index and head, if the record has them.
export function headMetric(attention, metric) {
  return metric === "importance" ? attention.importance?.values : attention.stats?.[metric];
}

export const availableMetrics = (attention) => Object.keys(METRICS).filter((metric) => headMetric(attention, metric));

// The main pattern of a head, as classified by Python.
export function headLabel(attention, layerIndex, head) {
  return escapeInvisible(attention.stats?.label?.[layerIndex]?.[head] || "");
}

export function isBestHead(attention, layer, head) {
  const best = current.record.view?.best;
  return Boolean(best) && best.attention === attention.name && best.layer === layer && best.head === head;
}

// All heads of an attention, layer by layer.
export function listHeads(attention) {
  return attention.layers.flatMap((layer, layerIndex) =>
    range(attention.heads, (head) => ({
      layer,
      layerIndex,
      head,
      site: siteName(attention, layer, head),
      label: headLabel(attention, layerIndex, head),
      isBest: isBestHead(attention, layer, head),
      isSelected: layer === state.layer && state.heads.includes(head),
    })),
  );
}

// Selects a head; `shouldAdd` toggles it among the selected heads of the same layer.
export function selectHead(layer, head, shouldAdd) {
  if (!shouldAdd || layer !== state.layer) {
    update({ layer, heads: [head] });
    return;
  }
  const heads = state.heads.includes(head)
    ? state.heads.filter((selected) => selected !== head)
    : [...state.heads, head].slice(-HEAD_COLOURS);
  update({ heads: heads.length ? heads : [head] });
}

export function drawHeadMap(box) {
  const attention = selectAttention(current.record);
  if (!attention) {
    box.replaceChildren();
    return;
  }
  const key = [current.record.id, state.record, attention.name, state.metric, root.dataset.theme].join();
  if (box.dataset.key !== key) drawSquares(box, attention);
  box.dataset.key = key;
  markSelectedSquares(box);
}

function markSelectedSquares(box) {
  for (const square of box.querySelectorAll(".square")) {
    const head = Number(square.dataset.head);
    const isSelected = Number(square.dataset.layer) === state.layer && state.heads.includes(head);
    square.setAttribute("aria-selected", ariaBoolean(isSelected));
    square.tabIndex = isSelected && head === state.heads[0] ? 0 : -1;
    square.style.outlineColor = isSelected && state.heads.length > 1 ? headColour(state.heads.indexOf(head)) : "";
  }
}

function drawSquares(box, attention) {
  const metrics = availableMetrics(attention);
  const metric = metrics.includes(state.metric) ? state.metric : metrics[0];
  const meaning = metric ? ["The darker, the more ", metricTerm(metric), ". "] : [];
  const star = current.record.view?.best ? [", ★ is the ", term("alignment head", "best alignment head")] : [];
  box.replaceChildren(
    mapControls(attention, metrics, metric),
    squareGrid(attention, metric && headMetric(attention, metric)),
    smallText(...meaning, "Rows are layers, columns are heads", ...star, "; a shift-click selects several."),
  );
}

function mapControls(attention, metrics, metric) {
  const all = current.record.attention;
  const kinds = all.map((other) => [attentionName(other), other.name, attentionMeaning({ attention: other })]);
  const selectKind = (name) => update({ attention: name, query: -1, key: -1, pins: [] });
  const options = metrics.map((name) => [metricName(name), name]);
  const selectMetric = (name) => update({ metric: name });
  return toolbar(
    element("h2", {}, `${pluralize(attention.layers.length, "layer")} × ${pluralize(attention.heads, "head")}`),
    all.length > 1 ? segmentedControl("kind of attention", kinds, attention.name, selectKind) : "",
    metrics.length > 1
      ? fieldLabel(
          "shaded by ",
          select("shading of the head map", options, metric, selectMetric, TERMS[METRICS[metric][1]]),
        )
      : "",
  );
}

function squareGrid(attention, values) {
  const max = Math.max(1e-9, ...(values || []).flat());
  const squares = listHeads(attention).map((entry) =>
    squareElement(entry, values?.[entry.layerIndex][entry.head], max),
  );
  const gridRow = (name, cells, attributes) => {
    const header = element("span", { class: "layer", role: attributes.role && "rowheader" }, name);
    return element("div", { class: "line", ...attributes }, header, ...cells);
  };
  const headNumbers = range(attention.heads, (head) => element("span", { class: "head" }, head));
  return element(
    "div",
    {
      role: "grid",
      class: "head-map",
      "aria-label": "heads: rows are layers, columns are heads",
      onkeydown: moveByKey,
    },
    ...attention.layers.map((layer, index) =>
      gridRow(`${layer}`, squares.slice(index * attention.heads, (index + 1) * attention.heads), { role: "row" }),
    ),
    gridRow("", headNumbers, { "aria-hidden": "true" }),
  );
}

function squareElement({ layer, head, site, label, isBest }, value, max) {
  const number = value === undefined ? "" : Number(value).toFixed(2);
  const name = [site, label, number, isBest ? "best alignment head" : ""].filter(Boolean).join(", ");
  const square = element(
    "button",
    {
      role: "gridcell",
      class: "square",
      title: name,
      "aria-label": name,
      "data-layer": layer,
      "data-head": head,
      onclick: (event) => selectHead(layer, head, event.shiftKey || event.ctrlKey || event.metaKey),
      onpointerenter: (event) => {
        if (!event.buttons) update({ hoveredHeads: [[layer, [head]]] });
        else if (layer === state.layer && !state.heads.includes(head)) selectHead(layer, head, true);
      },
    },
    isBest ? "★" : "",
  );
  return setShade(square, rootLevel((clamp(value || 0, 0, max) / max) ** 1.5));
}

// Arrow keys move from square to square.
function moveByKey(event) {
  const step = arrowStep(event);
  if (!step) return;
  const attention = selectAttention(current.record);
  const { layers, heads } = attention;
  const [layerStep, headStep] = step;
  const layerIndex = layers.indexOf(Number(event.target.dataset.layer));
  const layer = layers[clamp(layerIndex + layerStep, 0, layers.length - 1)];
  const head = clamp(Number(event.target.dataset.head) + headStep, 0, heads - 1);
  selectHead(layer, head, event.shiftKey);
  document.querySelector(`.square[data-layer="${layer}"][data-head="${head}"]`).focus();
}
