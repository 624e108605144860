// One head's weights when they are there; otherwise they are sent for, and `told` is called when they have come.

import { decoded, fromRoots } from "./codes.js";
import { arrived, lineAt } from "./numbers.js";
import { bytesOf } from "./shelf.js";

const ROOM = 128e6; // bytes of matrices that are kept; what is made of them takes as much again and more
const kept = new Map(); // oldest first
const coming = new Map();
const faults = new Map();
const listeners = new Set(); // each is told once when something has come
let held = 0;

function keep(key, weights) {
  held += weights.byteLength - (kept.get(key)?.byteLength || 0);
  kept.set(key, weights);
  for (const [old, dropped] of kept) {
    if (held <= ROOM || old === key) break;
    kept.delete(old);
    held -= dropped.byteLength;
  }
}

const numbers = new WeakMap();
let counter = 0;

function keyOf(...parts) {
  return parts.map((part) => {
    if (typeof part !== "object") return part;
    if (!numbers.has(part)) numbers.set(part, (counter += 1));
    return numbers.get(part);
  }).join("/");
}

export const blockOf = (seen, layer, head) => seen.blocks.find((one) => one.layer === layer && one.heads.includes(head));

// Returns the weights, or null while they are on their way; an Error when they cannot be had.
export function weightsOf(seen, layer, head, told) {
  const key = keyOf(seen, layer, head);
  const found = kept.get(key);
  if (found) {
    kept.delete(key);
    kept.set(key, found);
    return found;
  }
  if (faults.has(key)) return faults.get(key);
  const block = blockOf(seen, layer, head);
  if (!block) return new Error(`the weights of layer ${layer}, head ${head} were left out of this record`);
  const source = block.href ? key : keyOf(block);
  listeners.add(told);
  if (!coming.has(source)) coming.set(source, brought(seen, block, layer, head, key).then(tellAll));
  return null;
}

function tellAll() {
  const waiting_ = [...listeners];
  listeners.clear();
  waiting_.forEach((told) => told());
}

async function brought(seen, block, layer, head, key) {
  try {
    if (block.href) {
      keep(key, fromRoots(await bytesOf([...block.href.split("/").map(encodeURIComponent), head].join("/"))));
    } else {
      const all = await decoded(block, "root8");
      block.heads.forEach(
        (one, place) => keep(keyOf(seen, layer, one), lineAt(all, place, all.length / block.heads.length).slice())
      );
    }
  } catch (error) {
    faults.set(key, error);
  }
  coming.delete(block.href ? key : keyOf(block));
}

// Every head's matrix at a glance: {rows, columns, all, of(layer, head) → weights}, or null while they are on their way.
export const thumbsOf = (seen, told) => arrived(seen, () => openedThumbs(seen), told);

async function openedThumbs(seen) {
  const [rows, columns] = seen.thumbs.size;
  const all = await decoded(seen.thumbs, "root8");
  const of = (layer, head) => lineAt(all, seen.layers.indexOf(layer) * seen.heads + head, rows * columns);
  return { rows, columns, all, of };
}
