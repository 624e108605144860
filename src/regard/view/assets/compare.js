// Compare: two records side by side and their difference: two inputs, two models, or one sentence through a training.

import { signedBar, signedLevel } from "./colours.js";
import { block, fine, labelled, make, notice, picker, range, row, titled } from "./dom.js";
import { matrix, point } from "./matrix.js";
import { highest, total } from "./numbers.js";
import { opened, sidesOf, tablesOf } from "./scene.js";
import { shelf } from "./shelf.js";
import { change, state } from "./state.js";
import { emptyTable, weightTable } from "./tableform.js";
import { average, scaled } from "./tables.js";
import { classBars } from "./verdict.js";
import { number, percent, visible } from "./words.js";

const beside = { maps: [] };
const timeOf = ({ made = {} }) => made.step ?? made.epoch;
const sourceOf = (one) => one.source ?? one.texts?.source?.text ?? one.title;

export function nameOf(one) {
  const text = visible(one.title || sourceOf(one) || one.id || "");
  const from = [
    one.made?.model, timeOf(one) !== undefined && `@ ${timeOf(one)}`, one.made?.off?.length && `without ${one.made.off}`
  ].filter(Boolean).join(" ");
  return `${text.slice(0, 60)}${text.length > 60 ? "…" : ""}${from ? ` · ${visible(from)}` : ""}`;
}

// Records of the same sentence at several times of a training, in order.
function training() {
  const same = shelf.records.map((one, place) => place).filter(
    (place) => sourceOf(shelf.records[place]) === sourceOf(
      shelf.records[state.record]
    ) && timeOf(shelf.records[place]) !== undefined
  );
  return same.length > 1 ? same.sort((one, other) => timeOf(shelf.records[one]) - timeOf(shelf.records[other])) : [];
}

function slider() {
  const times_ = training();
  if (!times_.length) return "";
  const name = (place) => `${timeOf(shelf.records[times_[place]])}`;
  const told = make("output", {}, name(times_.indexOf(state.record)));
  return labelled(
    "through the training ",
    range(
      "time of the training", times_.indexOf(state.record), times_.length - 1,
      (place) => { told.textContent = name(place); change({ record: times_[place] }); }
    ),
    told
  );
}

function tableFor(record, redraw) {
  const seen = record.attention.find((one) => one.name === state.attn);
  if (!seen) return { say: `It has no ${visible(state.attn)}.` };
  const sides = sidesOf(record, seen);
  const layer = seen.layers.includes(state.layer) ? state.layer : seen.layers.at(-1);
  const tables = tablesOf(
    record, seen, layer, state.heads.map((head) => Math.min(head, seen.heads - 1)), sides, redraw
  );
  return tables ? { seen, ...sides, values: scaled(average(tables), sides.columns, state.norm) } : { say: "opening …" };
}

const alikeUnits = (one, other) => one.length === other.length && one.every(
  (unit, place) => unit.label === other[place].label
);
const sameTable = (one, other) => one.values && other.values && alikeUnits(one.rows, other.rows) && alikeUnits(
  one.columns, other.columns
);

function pictured({ rows, columns, values, seen, to, say }, name, width, extra = {}) {
  if (!values) return notice(say);
  const map = matrix(
    {
      rows, columns, values, width, height: 340, own: seen.rows === seen.cols, flip: to.dir === "rtl", name,
      hover: (y, x) => { point(y, x); linked(y, x); }, ...extra
    }
  );
  beside.maps.push([map, rows.length, columns.length]);
  return map.element;
}

function linked(y, x) {
  beside.maps.forEach(([map, rows, columns]) => map.mark(y < rows ? y : -1, x < columns ? x : -1));
}

function outcome({ verdict: found, texts: { target } }) {
  if (found?.labels) return classBars(found);
  return target ? make("p", { class: "said", dir: target.dir || "auto" }, visible(target.text).slice(0, 400)) : "";
}

function difference(one, other, width) {
  if (!one.values || !other.values) return "";
  if (!sameTable(one, other)) return fine(
    "The two are not made of the same words, so there is no difference to draw cell by cell."
  );
  const values = one.values.map((value, place) => value - other.values[place]);
  const most = highest(values, 0.05);
  const moved = total(values.map(Math.abs)) / 2 / Math.max(1, one.rows.length);
  return titled("first minus second", pictured(
    { ...one, values }, "difference, first minus second", width, { level: signedLevel(most), ramp: "signed" }
  ),
    signedBar(number(most)), fine(`${percent(moved)} of an average row’s attention is elsewhere.`));
}

export const compare = {
  key: "compare", name: "Compare",
  what: "The same head in two records (two inputs, two models, before and after some training) and where they differ: orange more in the first, blue more in the second.",
  missing: (record) => (
    !record.attention.length || shelf.records.length > 1
      ? "" : "There is only one record here: give two texts, two models, or a run that keeps a sentence’s attention while it trains."
  ),
  draw(stage, scene, redraw) {
    beside.maps = [];
    const offered = shelf.records.map((one, place) => [nameOf(one), place]).filter(
      ([, place]) => place !== state.record
    );
    const chooser = row(
      labelled(
        "with ", picker("compare with", [["choose …", -1], ...offered], state.with, (place) => change({ with: place }))
      ),
      slider()
    );
    if (!opened.other) return stage.replaceChildren(chooser, fine("Choose what to compare this record with."));
    const [one, other] = [tableFor(opened.record, redraw), tableFor(opened.other, redraw)];
    const width = stage.clientWidth > 684 ? (stage.clientWidth - 24) / 2 : stage.clientWidth;
    const side = (record, found, name, place) => titled(
      nameOf(shelf.records[place]), outcome(record), pictured(found, name, width)
    );
    stage.replaceChildren(
      chooser,
      block("pair", side(opened.record, one, "first record", state.record),
        side(opened.other, other, "second record", state.with)
      ),
      difference(one, other, width)
    );
    beside.maps.forEach(([map]) => map.layout());
    return this.mark();
  },
  mark: () => linked(state.q, state.k),
  table() {
    if (!opened.other) return emptyTable("Nothing chosen to compare with");
    const [one, other] = [tableFor(opened.record, () => {}), tableFor(opened.other, () => {})];
    if (!sameTable(one, other)) return emptyTable("The two records are not made of the same words");
    return weightTable(
      "Difference: first minus second", one.rows, one.columns,
      one.values.map((value, place) => value - other.values[place])
    );
  },
};
