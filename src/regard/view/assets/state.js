// What is shown, kept in the fragment of the address, so that a link opens the same view.

import { clamp, root } from "./dom.js";
import { initialRecord, isServed, recordPath, store } from "./store.js";
import { NORMS } from "./weight-tables.js";

export const state = {
  record: 0, // index in the store
  comparedWith: -1, // index of the other record
  view: "lines",
  attention: "", // name of the attention
  layer: 0,
  heads: [0],
  query: 0, // row that is pointed at
  key: -1, // column that is pointed at
  pins: [], // rows that stay selected
  unit: "word",
  norm: "raw",
  mass: 0.9, // share of a row's weight that lines are drawn for
  specials: true,
  table: false,
  step: 0,
  form: "",
  transposed: false,
  sort: "layer",
  label: "",
  metric: "",
  ablated: [], // names of heads to ablate
  hoveredHeads: [], // [layer, heads] that are fetched first
};
const DEFAULTS = { ...state };
const POINTER_FIELDS = new Set(["query", "key", "pins", "step"]); // what is pointed at, not what is drawn
const ADDRESS_FIELDS = { comparedWith: "with" }; // where they differ from the state's
const CHOICES = {
  unit: ["word", "subword"],
  norm: Object.keys(NORMS),
  form: ["columns", "text"],
  sort: ["entropy", "distance", "special", "importance", "similarity"],
  metric: ["distance", "special", "importance"],
};
const VIEWS_OF_FIGURES = { "beam-tree": "decoding", hops: "matrix" }; // figures that are part of a view here
const ADDRESS_DELAY = 120; // milliseconds; browsers refuse an address that changes with every move of the pointer
const MAX_HEADS = 8;
const listeners = {};

// Registers {draw, mark, prefetch, open}.
export function subscribe(callbacks) {
  Object.assign(listeners, callbacks);
}

export function update(changes) {
  const changed = Object.keys(changes).filter((name) => changes[name] !== state[name]);
  if (!changed.length) return;
  Object.assign(state, changes);
  if (`${changed}` === "hoveredHeads") {
    listeners.prefetch();
    return;
  }
  if (changed.includes("record") || changed.includes("comparedWith")) listeners.open();
  else if (changed.every((name) => POINTER_FIELDS.has(name))) listeners.mark();
  else listeners.draw();
  scheduleAddress();
}

const findAttention = (record, name) =>
  record.attention.find((attention) => attention.name === name) || record.attention[0];

// Selects the head that the record's author marked as best.
export function selectBestHead(record) {
  const { attention: name, layer, head = 0, heads } = record.view || {};
  const attention = findAttention(record, name);
  if (attention) {
    Object.assign(state, { attention: attention.name, layer, heads: heads || [head] });
    Object.assign(state, { query: -1, key: -1, pins: [], ablated: [], step: 0 });
  }
  clampState(record);
}

// Replaces an attention, a layer or heads that the record does not have.
export function clampState(record) {
  const attention = findAttention(record, state.attention);
  if (!attention) return;
  state.attention = attention.name;
  if (!attention.layers.includes(state.layer)) state.layer = attention.layers.at(-1);
  const heads = state.heads.filter((head) => head < attention.heads);
  if (heads.length !== state.heads.length) state.heads = heads.length ? heads : [0];
}

const parseList = (text) => (/^\d+(,\d+)*$/.test(text ?? "") ? text.split(",").map(Number) : null);
let address = new URLSearchParams();

const readInteger = (field, fallback) => parseList(address.get(field))?.[0] ?? fallback;

// Reads which records and which view to show; returns the theme.
export function readAddress(viewKeys) {
  address = new URLSearchParams(location.hash.slice(1));
  const readRecord = (field, fallback) => Math.min(readInteger(field, fallback), store.records.length - 1);
  state.record = Math.max(0, readRecord("record", initialRecord()));
  state.comparedWith = readRecord("with", -1);
  if (viewKeys.includes(address.get("view"))) state.view = address.get("view");
  return address.get("theme");
}

// Applies the fields that refer to an open record; the record's own settings stand in for missing ones.
export function applyAddress(record) {
  for (const [field, allowed] of Object.entries(CHOICES)) {
    const requested = address.get(field) ?? record.view?.[field];
    if (allowed.includes(requested)) state[field] = requested;
  }
  if (!address.get("view") && record.view?.view) {
    state.view = VIEWS_OF_FIGURES[record.view.view] || record.view.view;
  }
  if (address.get("attention")) state.attention = address.get("attention");
  state.layer = readInteger("layer", state.layer);
  state.heads = (parseList(address.get("heads") ?? address.get("head")) || state.heads).slice(0, MAX_HEADS);
  state.query = readInteger("q", record.view?.q ?? -1);
  state.step = readInteger("step", 0);
  state.pins = parseList(address.get("pin")) || [];
  state.mass = clamp(Number(address.get("mass")) || 0.9, 0.1, 1);
  state.specials = address.get("specials") !== "no";
  state.table = address.get("table") === "yes";
  state.transposed = address.get("transposed") === "yes";
  clampState(record);
}

function addressFields() {
  const fields = {
    view: state.view,
    attention: state.attention,
    layer: state.layer,
    heads: state.heads.join(","),
  };
  if (state.query >= 0) fields.q = state.query;
  const optional = ["step", "comparedWith", "mass", ...Object.keys(CHOICES), ...(isServed ? [] : ["record"])];
  for (const name of optional) {
    if (state[name] !== DEFAULTS[name]) fields[ADDRESS_FIELDS[name] ?? name] = state[name];
  }
  if (state.pins.length) fields.pin = state.pins.join(",");
  if (!state.specials) fields.specials = "no";
  for (const name of ["table", "transposed"]) if (state[name]) fields[ADDRESS_FIELDS[name] ?? name] = "yes";
  const { chosen } = root.dataset;
  return chosen ? { ...fields, theme: chosen } : fields;
}

let addressTimer = 0;

export function scheduleAddress() {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(writeAddress, ADDRESS_DELAY);
}

export function writeAddress() {
  clearTimeout(addressTimer);
  const record = isServed && store.records[state.record];
  const path = record ? recordPath(record.id) : "";
  try {
    history.replaceState(null, "", `${path}#${new URLSearchParams(addressFields())}`);
  } catch {
    // A frame without an address of its own, such as a notebook's, cannot change it.
  }
}
