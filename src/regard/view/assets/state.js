// What is looked at, kept in the address after its #, so that a link brings someone else to the same place.

import { clamp, root } from "./dom.js";
import { served, shelf, startsWith } from "./shelf.js";
import { NORMS } from "./tables.js";

export const state = {
  record: 0, view: "look", attn: "", layer: 0, heads: [0], q: 0, k: -1, pins: [], unit: "word", norm: "raw", cut: 0.9,
  specials: true, table: false, with: -1, step: 0, form: "", turned: false, sort: "layer", label: "", metric: "",
  off: [], wish: [],
};
const PLAIN = { ...state };
const MARKS = new Set(["q", "k", "pins", "step"]); // these change what is pointed at, not what is drawn
const WORDS = {
  unit: ["word", "piece"], norm: Object.keys(NORMS), form: ["columns", "text"],
  sort: ["entropy", "distance", "special", "importance", "likeness"], metric: ["distance", "special", "importance"]
};
const FIGURES = { beams: "steps", hops: "align" }; // figures that are part of a view here
const watchers = {};

export function watchState(acts) {
  Object.assign(watchers, acts);
}

export function change(changes) {
  const changed = Object.keys(changes).filter((name) => changes[name] !== state[name]);
  if (!changed.length) return;
  Object.assign(state, changes);
  if (`${changed}` === "wish") return void watchers.prepare(); // a head that is pointed at may be taken next
  if (changed.includes("record") || changed.includes("with")) watchers.open();
  else if (changed.every((name) => MARKS.has(name))) watchers.mark();
  else watchers.draw();
  return keepAddress();
}

// A record opens with the head that its maker thought best.
export function openBest(record) {
  const { attn, layer, head = 0, heads: asked_ } = record.view || {};
  const seen = record.attention.find((one) => one.name === attn) || record.attention[0];
  if (seen) Object.assign(
    state, { attn: seen.name, layer, heads: asked_ || [head], q: -1, k: -1, pins: [], off: [], step: 0 }
  );
  fitState(record);
}

// Makes the state fit a record, whatever was asked for.
export function fitState(record) {
  const seen = record.attention.find((one) => one.name === state.attn) || record.attention[0];
  if (!seen) return;
  state.attn = seen.name;
  if (!seen.layers.includes(state.layer)) state.layer = seen.layers.at(-1);
  const heads_ = state.heads.filter((head) => head < seen.heads);
  if (heads_.length !== state.heads.length) state.heads = heads_.length ? heads_ : [0];
}

const list = (text) => (/^\d+(,\d+)*$/.test(text ?? "") ? text.split(",").map(Number) : null);
let asked = new URLSearchParams();

export function readAddress(names) {
  asked = new URLSearchParams(location.hash.slice(1));
  const place = (name, otherwise) => Math.min(list(asked.get(name))?.[0] ?? otherwise, shelf.records.length - 1);
  state.record = Math.max(0, place("record", startsWith()));
  state.with = place("with", -1);
  if (names.includes(asked.get("view"))) state.view = asked.get("view");
  return asked.get("theme");
}

// The part of the address, and of what the record itself asks for, that means something only for an opened record.
export function applyAddress(record) {
  const wish = (name) => asked.get(name) ?? record.view?.[name];
  const whole = (name, otherwise) => list(asked.get(name))?.[0] ?? otherwise;
  for (const [name, known] of Object.entries(WORDS)) if (known.includes(wish(name))) state[name] = wish(name);
  if (!asked.get("view") && record.view?.view) state.view = FIGURES[record.view.view] || record.view.view;
  if (asked.get("attn")) state.attn = asked.get("attn");
  state.layer = whole("layer", state.layer);
  state.heads = (list(asked.get("heads") ?? asked.get("head")) || state.heads).slice(0, 8);
  state.q = whole("q", record.view?.q ?? -1);
  state.step = whole("step", 0);
  state.pins = list(asked.get("pin")) || [];
  state.cut = clamp(Number(asked.get("cut")) || 0.9, 0.1, 1);
  state.specials = asked.get("specials") !== "no";
  state.table = asked.get("table") === "yes";
  state.turned = asked.get("turned") === "yes";
  fitState(record);
}

export function addressFields() {
  const fields = { view: state.view, attn: state.attn, layer: state.layer, heads: state.heads.join(","), q: state.q };
  for (
    const name of ["step", "with", "cut", ...Object.keys(WORDS), ...(served ? [] : ["record"])]
  ) if (state[name] !== PLAIN[name]) fields[name] = state[name];
  if (state.pins.length) fields.pin = state.pins.join(",");
  if (!state.specials) fields.specials = "no";
  for (const name of ["table", "turned"]) if (state[name]) fields[name] = "yes";
  const { chosen } = root.dataset;
  return chosen ? { ...fields, theme: chosen } : fields;
}

let waiting = 0;

export function keepAddress() {
  clearTimeout(waiting);
  waiting = setTimeout(writeAddress, 120); // browsers refuse an address that changes with every move of the pointer
}

export function writeAddress() {
  clearTimeout(waiting);
  const path = served && shelf.records[state.record] ? `/r/${encodeURIComponent(shelf.records[state.record].id)}` : "";
  try {
    history.replaceState(null, "", `${path}#${new URLSearchParams(addressFields())}`);
  } catch {
    // a frame without an address of its own has none to keep
  }
}
