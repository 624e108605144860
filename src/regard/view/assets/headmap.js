// The head map: one square a head, always in sight; click takes a head, shift-click or dragging adds it.

import { HUES, hue, rootLevel, shadeIn } from "./colours.js";
import { arrow, choices, clamp, fine, labelled, make, picker, root, row, truth } from "./dom.js";
import { upTo } from "./numbers.js";
import { opened, seenOf } from "./scene.js";
import { change, state } from "./state.js";
import { counted, kindName, siteOf, visible } from "./words.js";

const METRICS = {
  entropy: ["entropy", "how many places it spreads over"],
  distance: ["distance", "how far away it looks"],
  special: ["on specials", "how much falls on special tokens"],
  importance: ["importance", "what is lost without it"],
};

export const metricOf = (seen, name) => (name === "importance" ? seen.importance?.by : seen.stats?.[name]);
export const metricsOf = (seen) => Object.keys(METRICS).filter((name) => metricOf(seen, name));
export const metricName = (name) => METRICS[name][0];
export const labelOf = (seen, place, head) => visible(seen.stats?.label?.[place]?.[head] || "");

// Every head of an attention, in order.
export function headsOf(seen) {
  return seen.layers.flatMap((layer, place) => upTo(seen.heads, (head) => ({
    layer, place, head, site: siteOf(seen, layer, head), label: labelOf(seen, place, head),
    best: isBest(seen, layer, head),
    taken: layer === state.layer && state.heads.includes(head),
  })));
}

export function isBest(seen, layer, head) {
  const { measured: known, attn, layer: best, head: best_ } = opened.record.view || {};
  return Boolean(known) && attn === seen.name && best === layer && best_ === head;
}

export function takeHead(layer, head, add) {
  if (!add || layer !== state.layer) return change({ layer, heads: [head] });
  const heads_ = state.heads.includes(head) ? state.heads.filter(
    (one) => one !== head
  ) : [...state.heads, head].slice(-HUES);
  return change({ heads: heads_.length ? heads_ : [head] });
}

export function drawHeadMap(box) {
  const seen = seenOf(opened.record);
  if (!seen) return void box.replaceChildren();
  const key = [
    opened.record.id, state.record, seen.name, state.metric, root.dataset.theme
  ].join();
  if (box.dataset.key !== key) drawSquares(box, seen);
  box.dataset.key = key;
  return selectSquares(box);
}

function selectSquares(box) {
  for (const square_ of box.querySelectorAll(".square")) {
    const head = Number(square_.dataset.head);
    const taken = Number(square_.dataset.layer) === state.layer && state.heads.includes(head);
    square_.setAttribute("aria-selected", truth(taken));
    square_.tabIndex = taken && head === state.heads[0] ? 0 : -1;
    square_.style.outlineColor = taken && state.heads.length > 1 ? hue(state.heads.indexOf(head)) : "";
  }
}

function drawSquares(box, seen) {
  const { attention } = opened.record;
  const metrics = metricsOf(seen);
  const metric = metrics.includes(state.metric) ? state.metric : metrics[0];
  const values = metric && metricOf(seen, metric);
  const most = Math.max(1e-9, ...(values || []).flat());
  const all = headsOf(seen).map((one) => square(one, values?.[one.place][one.head], most));
  const line = (name, cells, extra) => make(
    "div", { class: "line", ...extra }, make("span", { class: "layer", role: extra.role && "rowheader" }, name),
    ...cells
  );
  const numbers_ = upTo(seen.heads, (head) => make("span", { class: "head" }, head));
  return box.replaceChildren(
    row(make("h2", {}, `${counted(seen.layers.length, "layer")} × ${counted(seen.heads, "head")}`),
      attention.length > 1 ? choices(
        "kind of attention", attention.map((one) => [kindName(one), one.name, one.name]), seen.name,
        (attn) => change({ attn, q: -1, k: -1, pins: [] })
      ) : "",
      metrics.length > 1 ? labelled(
        "shaded by ",
        picker(
          "shading of the head map", metrics.map((name) => [metricName(name), name]), metric,
          (name) => change({ metric: name })
        )
      ) : ""),
    make("div", {
      role: "grid", class: "headmap", "aria-label": "heads: rows are layers, columns are heads", onkeydown: move
    },
      ...seen.layers.map(
        (layer, place) => line(`${layer}`, all.slice(place * seen.heads, (place + 1) * seen.heads), { role: "row" })
      ),
      line("", numbers_, { "aria-hidden": "true" })),
    fine(
      `${metric ? `The more ink, the more ${metricName(metric)} (${METRICS[metric][1]}). ` : ""}Rows are layers, columns are heads${opened.record.view?.measured ? ", ★ aligns best" : ""}; shift-click takes several.`
    ));
}

function square({ layer, head, site, label, best }, value, most) {
  const told = [
    site, label, value === undefined ? "" : Number(value).toFixed(2), best ? "best aligning head" : ""
  ].filter(Boolean).join(", ");
  const box = make("button", {
    role: "gridcell", class: "square", title: told, "aria-label": told, "data-layer": layer, "data-head": head,
    onclick: (event) => takeHead(layer, head, event.shiftKey || event.ctrlKey || event.metaKey),
    onpointerenter: (event) => {
      if (!event.buttons) change({ wish: [[layer, [head]]] });
      else if (layer === state.layer && !state.heads.includes(head)) takeHead(layer, head, true);
    },
  }, best ? "★" : "");
  return shadeIn(box, rootLevel((clamp(value || 0, 0, most) / most) ** 1.5));
}

// Within the map the arrows go from square to square.
function move(event) {
  const step = arrow(event);
  if (!step) return;
  const seen = seenOf(opened.record);
  const { layer, head } = event.target.dataset;
  const to = seen.layers[clamp(seen.layers.indexOf(Number(layer)) + step[0], 0, seen.layers.length - 1)];
  const to_ = clamp(Number(head) + step[1], 0, seen.heads - 1);
  takeHead(to, to_, event.shiftKey);
  document.querySelector(`.square[data-layer="${to}"][data-head="${to_}"]`).focus();
}
