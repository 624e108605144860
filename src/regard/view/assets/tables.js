// Tables of weights: pieces joined to words, rows brought to a scale, what a row looked at most.

import { lineAt, remembered, total } from "./numbers.js";

export const NORMS = {
  raw: ["raw", "Weights as they are, shaded by their root"],
  linear: ["linear", "Weights as they are, shaded straight"],
  max: ["row max", "Each row divided by its highest weight, shaded by the root"],
  text: ["without specials", "Special tokens left out, rows made to add up to 1 again, shaded by the root"],
};

// What a word looks at is added up over its pieces; who looks is averaged.
export function merged(weights, width, rows, columns) {
  const same = (list, count) => list.length === count && list.every(
    (unit, place) => unit.members.length === 1 && unit.members[0] === place
  );
  if (same(rows, weights.length / width) && same(columns, width)) return weights;
  const place = new Int32Array(width).fill(columns.length); // what is shown in no column is added up beside them
  columns.forEach((unit, column) => unit.members.forEach((token) => { place[token] = column; }));
  const table = new Float32Array(rows.length * columns.length);
  const sums = new Float32Array(columns.length + 1);
  rows.forEach(({ members }, row) => {
    sums.fill(0);
    for (const token of members) {
      const line = lineAt(weights, token, width);
      for (let from = 0; from < width; from += 1) sums[place[from]] += line[from];
    }
    const own = lineAt(table, row, columns.length);
    for (let column = 0; column < own.length; column += 1) own[column] = sums[column] / members.length;
  });
  return table;
}

export function average(tables) {
  if (tables.length === 1) return tables[0];
  const sum = new Float32Array(tables[0].length);
  for (const table of tables) for (
    let place = 0; place < sum.length; place += 1
  ) sum[place] += table[place] / tables.length;
  return sum;
}

export const scaled = (table, columns, norm) => (
  norm === "max" || norm === "text" ? remembered(table, norm, () => scaledBy(table, columns, norm)) : table
);

function scaledBy(table, columns, norm) {
  const [made, width, most] = [table.slice(), columns.length, norm === "max"];
  const hidden = columns.flatMap((unit, column) => (unit.special && !most ? [column] : []));
  for (let row = 0; row * width < made.length; row += 1) {
    const line = lineAt(made, row, width);
    let by = 0;
    for (const column of hidden) line[column] = 0;
    for (let column = 0; column < width; column += 1) by = most ? Math.max(by, line[column]) : by + line[column];
    for (let column = 0; by > 0 && column < width; column += 1) line[column] /= by;
  }
  return made;
}

// The mean of some rows: what a word, or several, looked at.
export function rowOf(table, width, rows) {
  if (rows.length === 1) return lineAt(table, rows[0], width);
  const mean = new Float32Array(width);
  for (const row of rows) for (
    let column = 0; column < width; column += 1
  ) mean[column] += table[row * width + column] / rows.length;
  return mean;
}

// The places of the highest values, the highest first.
export function ranked(row, count) {
  const best = [];
  for (let place = 0; place < row.length; place += 1) {
    if (best.length === count && !(row[place] > row[best[count - 1]])) continue;
    let at_ = Math.min(best.length, count - 1);
    for (; at_ > 0 && row[best[at_ - 1]] < row[place]; at_ -= 1) best[at_] = best[at_ - 1];
    best[at_] = place;
  }
  return best;
}

// The fewest columns that hold a share of a row's weight.
export function holding(row, share, most = 24) {
  const whole = total(row);
  const chosen = [];
  let sum = 0;
  for (const column of ranked(row, most)) {
    if (row[column] <= 0.004 || sum >= share * whole) break;
    chosen.push(column);
    sum += row[column];
  }
  return chosen;
}

export function entropy(row) {
  let sum = 0;
  for (const weight of row) if (weight > 0) sum -= weight * Math.log2(weight);
  return sum;
}

export function transposed(table, rows, columns) {
  const turned = new Float32Array(table.length);
  for (let row = 0; row < rows; row += 1) for (
    let column = 0; column < columns; column += 1
  ) turned[column * rows + row] = table[row * columns + column];
  return turned;
}
