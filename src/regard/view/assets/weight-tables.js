// Tables of weights: subwords merged into words, rows normalized, the largest weights of a row.

import { memoized, rowSlice, sum } from "./arrays.js";

const NEGLIGIBLE = 0.004; // weights that get no line

// Normalizations: name, description.
export const NORMS = {
  raw: ["raw", "Raw weights; the shade grows with their square root"],
  linear: ["linear", "Raw weights; the shade is proportional to them"],
  max: ["row max", "Weights relative to the largest of their row; the shade grows with the square root"],
  text: [
    "without specials",
    "Without special tokens, rows renormalised to sum to 1; the shade grows with the square root",
  ],
};

const coversEachToken = (units, tokenCount) =>
  units.length === tokenCount && units.every(({ members }, index) => members.length === 1 && members[0] === index);

// Sums weights over the subwords of a column's word and averages them over the subwords of a row's word.
export function mergeSubwords(weights, tokenColumns, rows, columns) {
  const tokenRows = weights.length / tokenColumns;
  if (coversEachToken(rows, tokenRows) && coversEachToken(columns, tokenColumns)) return weights;
  const columnOf = new Int32Array(tokenColumns).fill(columns.length); // tokens of no column go into an extra one
  columns.forEach(({ members }, column) => {
    for (const token of members) columnOf[token] = column;
  });
  const table = new Float32Array(rows.length * columns.length);
  const sums = new Float32Array(columns.length + 1);
  rows.forEach(({ members }, row) => {
    sums.fill(0);
    for (const token of members) {
      const tokenRow = rowSlice(weights, token, tokenColumns);
      for (let column = 0; column < tokenColumns; column += 1) sums[columnOf[column]] += tokenRow[column];
    }
    const wordRow = rowSlice(table, row, columns.length);
    for (let column = 0; column < wordRow.length; column += 1) wordRow[column] = sums[column] / members.length;
  });
  return table;
}

export function average(tables) {
  if (tables.length === 1) return tables[0];
  const mean = new Float32Array(tables[0].length);
  for (const table of tables) {
    for (let index = 0; index < mean.length; index += 1) mean[index] += table[index] / tables.length;
  }
  return mean;
}

export function normalizeTable(table, columns, norm) {
  if (norm === "max") return memoized(table, norm, () => divideByRowMax(table, columns.length));
  if (norm === "text") return memoized(table, norm, () => dropSpecials(table, columns));
  return table;
}

function divideRow(row, divisor) {
  for (let column = 0; divisor > 0 && column < row.length; column += 1) row[column] /= divisor;
}

function divideByRowMax(table, width) {
  const normalized = table.slice();
  for (let row = 0; row * width < normalized.length; row += 1) {
    const weights = rowSlice(normalized, row, width);
    let max = 0;
    for (let column = 0; column < width; column += 1) max = Math.max(max, weights[column]);
    divideRow(weights, max);
  }
  return normalized;
}

function dropSpecials(table, columns) {
  const normalized = table.slice();
  const width = columns.length;
  const specialColumns = columns.flatMap((unit, column) => (unit.special ? [column] : []));
  for (let row = 0; row * width < normalized.length; row += 1) {
    const weights = rowSlice(normalized, row, width);
    let total = 0;
    for (const column of specialColumns) weights[column] = 0;
    for (let column = 0; column < width; column += 1) total += weights[column];
    divideRow(weights, total);
  }
  return normalized;
}

// The weights of one row, or the mean over several.
export function queryRow(table, width, rows) {
  if (rows.length === 1) return rowSlice(table, rows[0], width);
  const mean = new Float32Array(width);
  for (const row of rows) {
    for (let column = 0; column < width; column += 1) mean[column] += table[row * width + column] / rows.length;
  }
  return mean;
}

// Indices of the largest values in descending order, by insertion into a sorted list of at most `count`.
export function topK(values, count) {
  const best = [];
  for (let index = 0; index < values.length; index += 1) {
    if (best.length === count && !(values[index] > values[best[count - 1]])) continue;
    let rank = Math.min(best.length, count - 1);
    for (; rank > 0 && values[best[rank - 1]] < values[index]; rank -= 1) best[rank] = best[rank - 1];
    best[rank] = index;
  }
  return best;
}

// The fewest columns that hold a share of a row's weight, at most `maxCount`.
export function smallestSet(row, share, maxCount = 24) {
  const total = sum(row);
  const columns = [];
  let mass = 0;
  for (const column of topK(row, maxCount)) {
    if (row[column] <= NEGLIGIBLE || mass >= share * total) break;
    columns.push(column);
    mass += row[column];
  }
  return columns;
}

// Entropy of a row of weights, in bits.
export function entropy(row) {
  let bits = 0;
  for (const weight of row) if (weight > 0) bits -= weight * Math.log2(weight);
  return bits;
}

export function transpose(table, rows, columns) {
  const transposed = new Float32Array(table.length);
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      transposed[column * rows + row] = table[row * columns + column];
    }
  }
  return transposed;
}
