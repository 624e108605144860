// Keyboard shortcuts: one table of what each key does, which is also the help.

import { cycle } from "./arrays.js";
import { button, clamp, element } from "./dom.js";
import { toggleReferenceHead } from "./heads.js";
import { selectRow } from "./heatmap.js";
import { selectAlignmentHead } from "./matrix.js";
import { current, remapSelection, selectAttention } from "./selection.js";
import { state, update } from "./state.js";
import { store } from "./store.js";
import { TERMS } from "./terms.js";
import { NORMS } from "./weight-tables.js";

function moveRow(scene, step) {
  const lastRow = Math.max(0, scene.rows.length - 1);
  update({ query: clamp(state.query + step, 0, lastRow), key: -1, pins: [] });
}

function moveLayer(step) {
  const { layers } = selectAttention(current.record);
  update({ layer: layers[clamp(layers.indexOf(state.layer) + step, 0, layers.length - 1)] });
}

function moveHead(step) {
  const { heads } = selectAttention(current.record);
  update({ heads: [clamp(state.heads[0] + step, 0, heads - 1)] });
}

function moveRecord(step) {
  update({ record: clamp(state.record + step, 0, store.records.length - 1) });
}

function setUnits(scene, unit, specials) {
  update({ unit, specials, ...remapSelection(scene, unit, specials) });
}

function nextAttention() {
  const names = current.record.attention.map(({ name }) => name);
  const attention = cycle(names, selectAttention(current.record).name);
  update({ attention, query: -1, key: -1, pins: [] });
}

function clearSelection(actions) {
  actions.closeSearch();
  update({ pins: [], key: -1, ablated: [] });
}

// Rows are [action, keys and description in the help]; `actions` is what the page can do.
export function buildShortcuts(actions) {
  const { view, scene } = actions;
  const otherUnit = () => cycle(["word", "subword"], state.unit);
  const onArrow = (handler, step) => (handler ? handler() : moveRow(scene(), step));
  const shortcuts = {
    ArrowLeft: [() => onArrow(view().onLeft, -1), "← →", "previous, next token (in Decoding: step)"],
    ArrowRight: [() => onArrow(view().onRight, 1)],
    ArrowUp: [() => moveLayer(-1), "↑ ↓", "layer"],
    ArrowDown: [() => moveLayer(1)],
    "[": [() => moveHead(-1), "[ ]", "head"],
    "]": [() => moveHead(1)],
    Enter: [() => selectRow(state.query, false), "Enter", "pin or unpin the selected token"],
    Escape: [() => clearSelection(actions), "Esc", "clear the selection"],
    " ": [() => view().onSpace?.(actions.redraw), "Space", "next step (Math), play or pause (Decoding)"],
    w: [() => setUnits(scene(), otherUnit(), state.specials), "w", "words or subwords as units"],
    n: [() => update({ norm: cycle(Object.keys(NORMS), state.norm) }), "n", "next normalisation of weights"],
    x: [() => setUnits(scene(), state.unit, !state.specials), "x", "show or hide special tokens"],
    k: [nextAttention, "k", "next kind of attention: encoder, decoder, cross"],
    b: [selectAlignmentHead, "b", "best alignment head"],
    l: [toggleReferenceHead, "l", "sort heads by similarity to the selected one (Heads)"],
    v: [() => update({ table: !state.table }), "v", "view or table"],
    ",": [() => moveRecord(-1), ", .", "previous, next record"],
    ".": [() => moveRecord(1)],
    "/": [actions.openSearch, "/", "find a token"],
    f: [actions.saveFigure, "f", "save the figure as SVG"],
    t: [actions.toggleTheme, "t", "light or dark theme"],
    "?": [actions.showHelp, "?", "this help"],
  };
  actions.views.forEach(({ key }, index) => {
    shortcuts[index + 1] = [() => update({ view: key })];
  });
  return shortcuts;
}

// Keys that belong to a focused control: text in fields, arrows in sliders, Enter and Space on buttons.
function belongsToControl({ key, target }) {
  const isInside = (selector) => target.closest?.(selector);
  const isSliderIdle = target.type === "range" && !key.startsWith("Arrow");
  if (isInside("input, select, textarea") && key !== "Escape" && !isSliderIdle) return true;
  return (key === "Enter" || key === " ") && isInside("button, a, summary");
}

export function listenForShortcuts(shortcuts, isBlocked) {
  document.addEventListener("keydown", (event) => {
    const hasModifier = event.ctrlKey || event.metaKey || event.altKey;
    const shortcut = shortcuts[event.key];
    if (belongsToControl(event) || hasModifier || isBlocked() || !shortcut) return;
    event.preventDefault();
    const [action] = shortcut;
    action();
  });
}

export function helpDialog(shortcuts, views) {
  const described = Object.values(shortcuts).filter(([, keys]) => keys);
  const entries = [["", "1 – 9", views.map((view) => view.name).join(", ")], ...described];
  const keyList = entries.flatMap(([, keys, description]) => [
    element("dt", {}, element("kbd", {}, keys)),
    element("dd", {}, description),
  ]);
  const termList = Object.entries(TERMS).flatMap(([name, meaning]) => [
    element("dt", {}, name),
    element("dd", {}, meaning),
  ]);
  const note =
    "In the head map and in a matrix, arrow keys move from cell to cell. Every view has a table. The address contains the current view: copy it to share.";
  const dialog = element(
    "dialog",
    { "aria-label": "help: keys and terms" },
    button("Close", () => dialog.close(), { autofocus: true, title: "close the help (Esc)" }),
    element("h2", {}, "Keys"),
    element("dl", {}, ...keyList),
    element("p", { class: "note" }, note),
    element("h2", {}, "Terms"),
    element("dl", {}, ...termList),
  );
  return dialog;
}
