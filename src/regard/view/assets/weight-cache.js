// The weights of heads: decoded from the record or fetched from the server, and cached up to a limit.

import { loadOnce, rowSlice } from "./arrays.js";
import { decodeBlock, decodeRoot8 } from "./codec.js";
import { fetchBytes } from "./store.js";

const CAPACITY = 128e6; // bytes of cached matrices; what is derived from them takes at least as much again
const cache = new Map(); // least recently used first
const pending = new Map();
const errors = new Map();
const listeners = new Set(); // each is called once, when the next weights have arrived
let cachedBytes = 0;

function addToCache(key, weights) {
  cachedBytes += weights.byteLength - (cache.get(key)?.byteLength || 0);
  cache.set(key, weights);
  for (const [oldKey, oldWeights] of cache) {
    if (cachedBytes <= CAPACITY || oldKey === key) break;
    cache.delete(oldKey);
    cachedBytes -= oldWeights.byteLength;
  }
}

const objectIds = new WeakMap();
let lastObjectId = 0;

// A string key; objects enter it by identity.
function cacheKey(...parts) {
  const ids = parts.map((part) => {
    if (typeof part !== "object") return part;
    if (!objectIds.has(part)) objectIds.set(part, (lastObjectId += 1));
    return objectIds.get(part);
  });
  return ids.join("/");
}

// The block of a record that holds a head of a layer.
export function findBlock(attention, layer, head) {
  return attention.blocks.find((block) => block.layer === layer && block.heads.includes(head));
}

// The weights of a head; null while they are loading, after which `onLoad` is called; an Error if they are unavailable.
export function headWeights(attention, layer, head, onLoad) {
  const key = cacheKey(attention, layer, head);
  const weights = cache.get(key);
  if (weights) {
    cache.delete(key);
    cache.set(key, weights);
    return weights;
  }
  if (errors.has(key)) return errors.get(key);
  const block = findBlock(attention, layer, head);
  if (!block) return new Error(`the weights of layer ${layer}, head ${head} were left out of this record`);
  const source = block.href ? key : cacheKey(block);
  listeners.add(onLoad);
  if (!pending.has(source)) {
    pending.set(source, fetchWeights(attention, block, layer, head, key).then(notifyListeners));
  }
  return null;
}

function notifyListeners() {
  const waiting = [...listeners];
  listeners.clear();
  waiting.forEach((listener) => listener());
}

async function fetchWeights(attention, block, layer, head, key) {
  try {
    if (block.href) {
      const path = [...block.href.split("/").map(encodeURIComponent), head].join("/");
      addToCache(key, decodeRoot8(await fetchBytes(path)));
    } else {
      const weights = await decodeBlock(block, "root8");
      const size = weights.length / block.heads.length;
      block.heads.forEach((blockHead, index) => {
        addToCache(cacheKey(attention, layer, blockHead), rowSlice(weights, index, size).slice());
      });
    }
  } catch (error) {
    errors.set(key, error);
  }
  pending.delete(block.href ? key : cacheKey(block));
}

// Small matrices of all heads, {rows, columns, values, weights(layer, head)}; null while they are loading.
export const thumbnails = (attention, onLoad) => loadOnce(attention, () => loadThumbnails(attention), onLoad);

async function loadThumbnails(attention) {
  const [rows, columns] = attention.thumbs.size;
  const values = await decodeBlock(attention.thumbs, "root8");
  const weights = (layer, head) => {
    const index = attention.layers.indexOf(layer) * attention.heads + head;
    return rowSlice(values, index, rows * columns);
  };
  return { rows, columns, values, weights };
}
