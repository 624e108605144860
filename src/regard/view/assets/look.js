// Look: tokens in two columns with lines between them, or running text that is shaded by where a word looked.

import { colourOf, hue, levelBy, shadeIn, sized, svgBox } from "./colours.js";
import { block, choices, make, root, row, shape, truth } from "./dom.js";
import { pick } from "./matrix.js";
import { upTo } from "./numbers.js";
import { lookedRow, lookers, own } from "./scene.js";
import { change, state } from "./state.js";
import { weightTable } from "./tableform.js";
import { holding, rowOf } from "./tables.js";
import { kindMeaning, number } from "./words.js";

const LINE = 26;
const FEW = 48; // units that two columns show unasked
const CHUNK = 50; // tokens of a paragraph; those out of sight are not laid out
const drawn = {};

export const look = {
  key: "look", name: "Look",
  what: "Each word on the left looked at words on the right. Lines hold the fewest places that make up nine tenths of its attention. Point at a word; click pins it, shift-click adds one, drag for a span.",
  draw(stage, scene) {
    const most = Math.max(scene.rows.length, scene.columns.length);
    drawn.form = most > 400 ? "text" : state.form || (most <= FEW ? "columns" : "text");
    const now = [scene.rows, scene.columns, drawn.form, kindMeaning(scene), root.dataset.theme];
    const same = now.every((one, place) => one === drawn.of?.[place]) && stage.contains(drawn.rows[0]);
    if (same && drawn.form === "text") return this.mark(scene); // another head: only the shades change
    [drawn.of, drawn.shades] = [now, []];
    drawn.rows = scene.rows.map((unit, place) => token(unit, "button", { "data-row": place }));
    drawn.columns = own(scene) && drawn.form === "text" ? drawn.rows : scene.columns.map((unit) => token(unit, "span"));
    const form = choices("form", [["Columns", "columns"], ["Text", "text"]], drawn.form, (to) => change({ form: to }));
    stage.replaceChildren(
      row(make("p", { class: "fine lead" }, `${kindMeaning(scene)}.`), form),
      drawn.form === "columns" ? asColumns(stage, scene) : asText(scene)
    );
    return this.mark(scene);
  },
  mark(scene) {
    const [chosen, seen, level] = [lookers(scene), lookedRow(scene), levelBy(state.norm)];
    drawn.rows.forEach((one, place) => {
      const on = truth(chosen.includes(place));
      if (one.getAttribute("aria-pressed") !== on) one.setAttribute("aria-pressed", on);
    });
    drawn.columns.forEach((one, place) => {
      const shade = level(seen[place]);
      if (drawn.shades[place] !== shade) shadeIn(one, shade);
      drawn.shades[place] = shade;
    });
    if (drawn.form === "columns") lines(scene, chosen, seen);
  },
  table: (scene) => weightTable("Where each word looked", scene.rows, scene.columns, scene.shown, lookers(scene)[0]),
};

export function token(unit, tag = "span", extra = {}) {
  return make(
    tag, { class: unit.special ? "token special" : "token", ...extra }, unit.label.slice(0, 200)
  );
}

// Words that look: pointing shows one, a click pins it, drag for a span. One ear for all of them.
function lookersIn(box) {
  const placeOf = ({ target }) => +(target.closest("[data-row]")?.dataset.row ?? -1);
  const heard = (kind, act) => box.addEventListener(kind, (event) => placeOf(event) >= 0 && act(event, placeOf(event)));
  heard("click", (event, place) => { if (!drawn.span) pick(place, event.shiftKey); drawn.span = null; });
  heard("pointerdown", (event, place) => { drawn.from = event.pointerType === "mouse" ? place : -1; drawn.span = null; });
  heard("pointerover", (event, place) => {
    if (event.buttons && drawn.from >= 0 && drawn.from !== place) {
      const first = Math.min(drawn.from, place);
      drawn.span = upTo(Math.abs(place - drawn.from) + 1, (step) => first + step);
      change({ pins: drawn.span, q: place });
    } else if (!state.pins.length) change({ q: place });
  });
  return box;
}

function asColumns(stage, scene) {
  drawn.bars = scene.columns.map(() => block("bars"));
  drawn.gap = Math.max(70, Math.min(420, stage.clientWidth - 400));
  const tall = LINE * Math.max(scene.rows.length, scene.columns.length) + 4;
  drawn.svg = svgBox(drawn.gap, tall, { class: "lines", "aria-hidden": "true" });
  return make("div", { class: own(scene) ? "look own" : "look" },
    lookersIn(block("from", ...drawn.rows)),
    make(
      "div", { class: "between", style: { width: `${drawn.gap}px`, height: `${tall}px` } },
      faint(scene, drawn.gap, tall), drawn.svg
    ),
    block("to", ...drawn.columns.map((one, place) => block("seen", one, drawn.bars[place]))
    ));
}

function curve(gap, from, to) {
  const [start, end] = [(from + 0.5) * LINE, (to + 0.5) * LINE];
  return `M0 ${start}C${gap * 0.45} ${start} ${gap * 0.55} ${end} ${gap} ${end}`;
}

// All lines of the head, faintly and once.
function faint(scene, gap, tall) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const pen = sized(canvas, gap, tall);
  pen.strokeStyle = colourOf("--soft");
  scene.rows.forEach((_, place) => {
    const seen = rowOf(scene.mean, scene.columns.length, [place]);
    for (const column of holding(seen, state.cut, 6)) {
      pen.globalAlpha = 0.05 + 0.28 * seen[column];
      pen.lineWidth = 0.6 + 1.6 * seen[column];
      pen.stroke(new Path2D(curve(gap, place, column)));
    }
  });
  return canvas;
}

function lines(scene, chosen, mean) {
  const width = scene.columns.length;
  const inkOf = (place) => (scene.each.length > 1 ? hue(place) : "var(--accent)");
  drawn.svg.replaceChildren(...chosen.flatMap((place) => scene.each.flatMap((table, head) => {
    const seen = rowOf(table, width, [place]);
    return holding(seen, state.cut).map((column) => shape("path", {
      d: curve(drawn.gap, place, column), fill: "none", stroke: inkOf(head), "stroke-linecap": "round",
      "stroke-width": 0.8 + 4.5 * seen[column], "stroke-opacity": 0.3 + 0.7 * seen[column],
    }));
  })));
  const each = scene.each.map((table) => rowOf(table, width, chosen));
  drawn.bars.forEach((bar, column) => {
    const made = each.some((seen) => seen[column] >= 0.005) ? each : [];
    bar.replaceChildren(...made.map(
      (seen, head) => make("i", { style: { width: `${Math.round(64 * seen[column])}px`, background: inkOf(head) } })
    ),
      mean[column] >= 0.05 ? make("span", {}, number(mean[column])) : "");
  });
}

// Tokens as running text; where another text of a pair begins, a new line does.
export function paragraph(title, side, units_, tokens) {
  const broken = tokens.flatMap(
    (one, place) => (place && units_[place].segment !== units_[place - 1].segment ? [make("br"), one] : [one])
  );
  const made = block("running", make("h3", {}, title));
  for (let from = 0; from < broken.length; from += CHUNK) {
    const some = broken.slice(from, from + CHUNK);
    made.append(make("p", { dir: side?.dir || "auto", class: broken.length > CHUNK ? "chunk" : "" }, ...some));
  }
  return made;
}

function asText(scene) {
  if (own(scene)) return lookersIn(block("texts own", paragraph("point at a word: what it looked at is shaded", scene.from, scene.rows, drawn.rows)
  ));
  return block("texts", paragraph("looked at", scene.to, scene.columns, drawn.columns),
    lookersIn(paragraph("looking", scene.from, scene.rows, drawn.rows))
  );
}
