// Arithmetic on lists of numbers, and numbers that are still on their way.

export const upTo = (count, make_ = (place) => place) => Array.from({ length: count }, (_, place) => make_(place));
export const total = (values) => values.reduce((sum, one) => sum + one, 0);
export const dot = (one, other) => one.reduce((sum, value, place) => sum + value * other[place], 0);
export const highest = (values, least = 1e-6) => values.reduce((high, value) => Math.max(high, Math.abs(value)), least);
export const around = (all, value) => all[(all.indexOf(value) + 1) % all.length];
export const lineAt = (values, place, width) => values.subarray(place * width, (place + 1) * width);

const before = new WeakMap();

// What was made of a thing for a key, made once; it goes when the thing goes.
export function remembered(thing, key, make_) {
  if (!before.has(thing)) before.set(thing, new Map());
  const known = before.get(thing);
  if (!known.has(key)) known.set(key, make_());
  return known.get(key);
}

const come = new WeakMap();

// What `load` promises for a thing, once it has come; before that nothing, and `told` is called when it is there.
export function arrived(thing, load, told) {
  if (!come.has(thing)) {
    come.set(thing, null);
    load().then((found) => { come.set(thing, found); told(); });
  }
  return come.get(thing);
}
