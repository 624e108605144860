// Every view as a plain table.

import { make } from "./dom.js";
import { lineAt } from "./numbers.js";
import { change } from "./state.js";
import { ranked } from "./tables.js";
import { number } from "./words.js";

const MOST = 100; // rows
const WIDE = 40; // columns of weights; more become the highest of each row

// {caption, head: [text], rows: [[text]], on, pick}
export function tableOf({ caption, head, rows, on = -1, pick = () => {} }) {
  const line = ([first, ...rest], place) => make("tr", { class: place === on ? "on" : "", onclick: () => pick(place) },
    make("th", { scope: "row", dir: "auto" }, first), ...rest.map((cell) => make("td", { dir: "auto" }, cell)));
  const more = rows.length > MOST ? ` (the first ${MOST} of ${rows.length.toLocaleString("en")} rows)` : "";
  return make("div", { class: "tabled", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption + more),
      make("thead", {}, make("tr", {}, ...head.map((cell) => make("th", { scope: "col", dir: "auto" }, cell)))),
      make("tbody", {}, ...rows.slice(0, MOST).map(line))));
}

export const emptyTable = (caption) => ({ caption, head: [""], rows: [] });

export function weightTable(caption, rows, columns, values, on) {
  const width = columns.length;
  const few = width <= WIDE;
  const cells = (line) => (few ? Array.from(line, (weight) => (Math.abs(weight) < 0.0005 ? "·" : number(weight)))
    : ranked(line, 5).map((column) => `${columns[column].label} ${number(line[column])}`));
  return {
    caption: few ? caption : `${caption}, the five highest of each row`,
    head: ["", ...(few ? columns.map((unit) => unit.label) : ["1st", "2nd", "3rd", "4th", "5th"])],
    rows: rows.slice(0, MOST + 1).map((unit, place) => [unit.label, ...cells(lineAt(values, place, width))]),
    on, pick: (q) => change({ q, pins: [] }),
  };
}
