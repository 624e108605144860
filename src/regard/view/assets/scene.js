// What the state means for the opened record: the units, the tables of the chosen heads, the row that is looked from.

import { clamp } from "./dom.js";
import { around, remembered } from "./numbers.js";
import { state } from "./state.js";
import { average, merged, NORMS, rowOf, scaled } from "./tables.js";
import { blockOf, thumbsOf, weightsOf } from "./weights.js";
import { units } from "./words.js";

export const opened = { record: null, other: null }; // the record, and the one that it is compared with

export function seenOf(record, name = state.attn) {
  return record.attention.find((one) => one.name === name) || record.attention[0];
}

export function sidesOf(record, seen, unit = state.unit, specials = state.specials) {
  const [from, to] = [record.texts[seen.rows], record.texts[seen.cols]];
  return { from, to, rows: units(from, unit === "word", specials), columns: units(to, unit === "word", specials) };
}

// Returns the tables of some heads, or null while one is on its way; throws when one cannot be had.
export function tablesOf(record, seen, layer, heads, sides, told) {
  const found = heads.map((head) => weightsOf(seen, layer, head, told));
  const fault = found.find((one) => one instanceof Error);
  if (fault) throw fault;
  if (found.includes(null)) return null;
  return found.map((weights, place) => remembered(weights, sides.rows, () => {
    const later = readLater(record, seen, layer, heads[place]);
    return merged(later ? moved(weights, sides, later) : weights, sides.to.tokens.length, sides.rows, sides.columns);
  }));
}

// The best aligning head may look at what a token comes from only once it is written: then its rows are read later.
export function readLater(record, seen, layer, head) {
  const { attn, layer: layer_, head: head_, measured, shift } = record.view || {};
  return measured && seen.rowmeans === "produced" && attn === seen.name && layer_ === layer && head_ === head ? shift || 0 : 0;
}

function moved(weights, sides, steps) {
  const made = new Float32Array(weights.length);
  const wide = sides.to.tokens.length;
  sides.from.special.forEach((mark, row) => {
    if (!mark) made.set(weights.subarray((row + steps) * wide, (row + steps + 1) * wide), row * wide);
  });
  return made;
}

// Returns null while weights are on their way.
export function composed(told) {
  const { record } = opened;
  const seen = seenOf(record);
  if (!seen) return {
    record, seen: null, rows: [], columns: [], each: [], mean: new Float32Array(0), shown: new Float32Array(0)
  };
  const sides = sidesOf(record, seen);
  const each = tablesOf(record, seen, state.layer, state.heads, sides, told);
  if (!each) return null;
  const mean = average(each);
  return {
    record, seen, ...sides, layer: state.layer, heads: state.heads, each, mean,
    later: state.heads.length === 1 && readLater(record, seen, state.layer, state.heads[0]),
    shown: scaled(mean, sides.columns, state.norm)
  };
}

const way = {};

// What may be asked for next is brought and made ready while nobody waits: the head that is pointed at, what lies the way
// that was gone last, the other heads beside and layers around, pieces instead of words, another scale. A little at a
// time; `later` goes on.
export function ahead(scene, later, ready) {
  const { record, seen, layer, heads } = scene;
  const [place, head] = [seen.layers.indexOf(layer), heads[0]];
  if (way.place !== place || way.head !== head) Object.assign(
    way, { place, head, step: `${place - way.place},${head - way.head}` }
  );
  const steps = [[0, 1], [-1, 0], [0, -1], [1, 0]].sort((one, other) => (`${other}` === way.step) - (`${one}` === way.step));
  const near = steps.map(([up, along]) => [seen.layers[place + up], along ? [head + along] : heads]);
  const parted = sidesOf(record, seen, state.unit === "word" ? "piece" : "word");
  for (const [to, others, sides = scene] of [...state.wish, ...near, [layer, heads, parted]]) {
    if (!others.every((one) => blockOf(seen, to, one))) continue;
    const from = performance.now();
    const late = () => performance.now() - from > 5 && later();
    const tables = tablesOf(record, seen, to, others, sides, later);
    if (!tables || late()) return;
    if (!tables[1]) ready?.(scaled(tables[0], sides.columns, state.norm), sides);
    if (late()) return;
  }
  thumbsOf(seen, later);
  scaled(scene.mean, scene.columns, around(Object.keys(NORMS), state.norm));
}

export const own = (scene) => scene.seen.rows === scene.seen.cols;

// The rows that are looked from: the pinned ones, else the one that is pointed at.
export function lookers(scene) {
  const pins = state.pins.filter((row) => row < scene.rows.length);
  return pins.length ? pins : [clamp(state.q, 0, Math.max(0, scene.rows.length - 1))];
}

export const lookedRow = (scene, table = scene.shown) => rowOf(table, scene.columns.length, lookers(scene));

// The row of the same token when words become pieces, or the other way round.
export function carried(scene, unit, specials = state.specials) {
  const { rows } = sidesOf(scene.record, scene.seen, unit, specials);
  const carry = (row) => Math.max(0, rows.findIndex((one) => one.members.includes(scene.rows[row]?.members[0])));
  return { q: carry(state.q), pins: [...new Set(state.pins.map(carry))], k: -1 };
}
