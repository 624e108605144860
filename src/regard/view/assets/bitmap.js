// Tables of weights as bitmaps, one pixel per cell or per block of cells, cached.

import { rowSlice } from "./arrays.js";
import { root8Of } from "./codec.js";
import { paintPixels, rootLevel } from "./colours.js";
import { root } from "./dom.js";

const bitmapCache = new WeakMap();

// The bitmap of a table, cached by theme, scale and pooling. Where cells are smaller than a pixel, `pool` × `pool` of
// them become one; pooled values are cached, too, and computed from those of half the pooling where these exist.
export function renderBitmap(values, rows, columns, level, ramp, pool) {
  if (!bitmapCache.has(values)) bitmapCache.set(values, {});
  const cached = bitmapCache.get(values);
  const key = [root.dataset.theme, pool];
  if (cached[key]?.level === level) return cached[key].bitmap;
  const root8 = level === rootLevel && root8Of(values); // bytes that are levels already
  const pooled = (size) => (size > 1 ? cached[[!root8, size]] : root8 || values);
  if (pool > 1 && !pooled(pool)) {
    const half = pool / 2;
    cached[[!root8, pool]] = pooled(half)
      ? maxPool(pooled(half), Math.ceil(rows / half), Math.ceil(columns / half), 2)
      : maxPool(pooled(1), rows, columns, pool);
  }
  const toLevel = root8 ? (byte) => byte : level;
  const bitmap = paintPixels(pooled(pool), Math.ceil(rows / pool), Math.ceil(columns / pool), toLevel, ramp);
  cached[key] = { level, bitmap };
  return bitmap;
}

// The value furthest from zero of each `pool` × `pool` block.
function maxPool(values, rows, columns, pool) {
  const width = Math.ceil(columns / pool);
  const pooled = new values.constructor(Math.ceil(rows / pool) * width);
  for (let row = 0; row < rows; row += 1) {
    const source = rowSlice(values, row, columns);
    const target = rowSlice(pooled, Math.floor(row / pool), width);
    for (let offset = 0; offset < pool; offset += 1) {
      for (let column = offset, to = 0; column < columns; column += pool, to += 1) {
        const value = source[column];
        if (value * value > target[to] * target[to]) target[to] = value;
      }
    }
  }
  return pooled;
}

// The power of two of cells that share a pixel.
export const poolSize = (cellSize) => 2 ** Math.max(0, Math.ceil(-Math.log2(cellSize)));
