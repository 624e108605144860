// Every view as an HTML table.

import { rowSlice } from "./arrays.js";
import { element } from "./dom.js";
import { formatWeight } from "./labels.js";
import { update } from "./state.js";
import { topK } from "./weight-tables.js";

const MAX_ROWS = 100;
const MAX_COLUMNS = 40; // of weights; wider tables show the five largest weights of each row
const RANKS = ["1st", "2nd", "3rd", "4th", "5th"];
const INVISIBLE = 0.0005; // weights shown as a dot

// Content: {caption, head: [text], rows: [[text]], selected, onPick}.
export function htmlTable({ caption, head, rows, selected = -1, onPick = () => {} }) {
  const bodyRow = ([first, ...rest], index) =>
    element(
      "tr",
      { class: index === selected ? "on" : "", onclick: () => onPick(index) },
      element("th", { scope: "row", dir: "auto" }, first),
      ...rest.map((cell) => element("td", { dir: "auto" }, cell)),
    );
  const truncation =
    rows.length > MAX_ROWS ? ` (the first ${MAX_ROWS} of ${rows.length.toLocaleString("en")} rows)` : "";
  const headCells = head.map((cell) => element("th", { scope: "col", dir: "auto" }, cell));
  return element(
    "div",
    { class: "table-box", tabindex: "0", role: "region", "aria-label": caption },
    element(
      "table",
      {},
      element("caption", {}, caption + truncation),
      element("thead", {}, element("tr", {}, ...headCells)),
      element("tbody", {}, ...rows.slice(0, MAX_ROWS).map(bodyRow)),
    ),
  );
}

export const emptyTable = (caption) => ({ caption, head: [""], rows: [] });

export function weightTable(caption, rows, columns, values, selected) {
  const width = columns.length;
  const isNarrow = width <= MAX_COLUMNS;
  const allWeights = (weights) =>
    Array.from(weights, (weight) => (Math.abs(weight) < INVISIBLE ? "·" : formatWeight(weight)));
  const topWeights = (weights) =>
    topK(weights, RANKS.length).map((column) => `${columns[column].label} ${formatWeight(weights[column])}`);
  const cells = isNarrow ? allWeights : topWeights;
  return {
    caption: isNarrow ? caption : `${caption}, the five largest of each row`,
    head: ["", ...(isNarrow ? columns.map((unit) => unit.label) : RANKS)],
    rows: rows.slice(0, MAX_ROWS + 1).map((unit, row) => [unit.label, ...cells(rowSlice(values, row, width))]),
    selected,
    onPick: (query) => update({ query, pins: [] }),
  };
}
