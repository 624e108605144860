// Keys: one table of what each does, which is also the help.

import { goToBest } from "./align.js";
import { button, clamp, make } from "./dom.js";
import { lockHead } from "./headsview.js";
import { pick } from "./matrix.js";
import { around } from "./numbers.js";
import { carried, opened, seenOf } from "./scene.js";
import { shelf } from "./shelf.js";
import { change, state } from "./state.js";
import { NORMS } from "./tables.js";

// acts: what the page does: scene, view, views, redraw, find, close, figure, theme, help
export function keysOf(acts) {
  const seen = () => seenOf(opened.record);
  const toRow = (step) => change(
    { q: clamp(state.q + step, 0, Math.max(0, acts.scene().rows.length - 1)), k: -1, pins: [] }
  );
  const toLayer = (step) => change(
    { layer: seen().layers[clamp(seen().layers.indexOf(state.layer) + step, 0, seen().layers.length - 1)] }
  );
  const toHead = (step) => change({ heads: [clamp(state.heads[0] + step, 0, seen().heads - 1)] });
  const toRecord = (step) => change({ record: clamp(state.record + step, 0, shelf.records.length - 1) });
  const carry = (unit, specials) => change({ unit, specials, ...carried(acts.scene(), unit, specials) });
  const table = {
    ArrowLeft: [() => (acts.view().left || toRow)(-1), "← →", "previous, next word (in Steps: step)"],
    ArrowRight: [() => (acts.view().right || toRow)(1)],
    ArrowUp: [() => toLayer(-1), "↑ ↓", "layer"],
    ArrowDown: [() => toLayer(1)],
    "[": [() => toHead(-1), "[ ]", "head"],
    "]": [() => toHead(1)],
    Enter: [() => pick(state.q, false), "Enter", "pin the word, or let it go"],
    Escape: [() => { acts.close(); change({ pins: [], k: -1, off: [] }); }, "Esc", "clear what is pinned"],
    " ": [() => acts.view().space?.(acts.redraw), "Space", "next step (Maths), play (Steps)"],
    w: [() => carry(around(["word", "piece"], state.unit), state.specials), "w", "words or pieces"],
    n: [() => change({ norm: around(Object.keys(NORMS), state.norm) }), "n", "normalise"],
    x: [() => carry(state.unit, !state.specials), "x", "special tokens"],
    k: [
      () => change(
        { attn: around(opened.record.attention.map((one) => one.name), seen().name), q: -1, k: -1, pins: [] }
      ),
      "k", "kind of attention"
    ],
    b: [goToBest, "b", "best aligning head"],
    l: [lockHead, "l", "keep this head for likeness (Heads)"],
    v: [() => change({ table: !state.table }), "v", "as a table"],
    ",": [() => toRecord(-1), ", .", "record before, after"],
    ".": [() => toRecord(1)],
    "/": [acts.find, "/", "find a word"],
    f: [acts.figure, "f", "save a figure"],
    t: [acts.theme, "t", "light or dark"],
    "?": [acts.help, "?", "this help"],
  };
  acts.views.forEach((one, place) => { table[place + 1] = [() => change({ view: one.key })]; });
  return table;
}

export function listenForKeys(table, blocked) {
  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    const inside = (names) => target.closest?.(names);
    const typing = inside("input, select, textarea, summary") && key !== "Escape" && !(
      target.type === "range" && !key.startsWith("Arrow")
    );
    const pressing = (key === "Enter" || key === " ") && inside("button, a");
    if (typing || pressing || event.ctrlKey || event.metaKey || event.altKey || blocked() || !table[key]) return;
    event.preventDefault();
    table[key][0]();
  });
}

export function helpBox(table, views) {
  const lines_ = [
    ["1 – 9", views.map((one) => one.name).join(", ")],
    ...Object.values(table).filter((one) => one[1]).map(([, key, what]) => [key, what])
  ];
  const dialog = make("dialog", { "aria-label": "keys" }, make("h2", {}, "Keys"),
    make("dl", {}, ...lines_.flatMap(([key, what]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, what)])),
    make(
      "p", { class: "fine" },
      "Inside the head map and a matrix the arrows go from cell to cell. Every view has a table form. The address keeps what you look at: copy it to share."
    ),
    button("Close", () => dialog.close(), { autofocus: true }));
  return dialog;
}
