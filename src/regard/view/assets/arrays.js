// Arithmetic on arrays, and values that are computed or loaded once.

export const range = (count, valueAt = (index) => index) => Array.from({ length: count }, (_, index) => valueAt(index));
export const sum = (values) => values.reduce((total, value) => total + value, 0);
export const dot = (left, right) => left.reduce((total, value, index) => total + value * right[index], 0);
export const maxAbs = (values, floor = 1e-6) => values.reduce((max, value) => Math.max(max, Math.abs(value)), floor);
export const cycle = (values, current) => values[(values.indexOf(current) + 1) % values.length];
export const rowSlice = (values, row, width) => values.subarray(row * width, (row + 1) * width);

const memory = new WeakMap();

// Computes a value once per object and key; it is released together with the object.
export function memoized(object, key, compute) {
  if (!memory.has(object)) memory.set(object, new Map());
  const values = memory.get(object);
  if (!values.has(key)) values.set(key, compute());
  return values.get(key);
}

const loaded = new WeakMap();

// Starts `load` once per object; returns null until its promise resolves, which calls `onLoad`.
export function loadOnce(object, load, onLoad) {
  if (!loaded.has(object)) {
    loaded.set(object, null);
    load().then((value) => {
      loaded.set(object, value);
      onLoad();
    });
  }
  return loaded.get(object);
}
