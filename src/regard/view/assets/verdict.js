// Verdict: what the model decided: bars of classes, or where an answer begins and ends; and what counted for it.

import { plot, shadeIn, signedBar, signedLevel, svgBox } from "./colours.js";
import { barList, choices, fine, make, picker, row, shape, titled, truth } from "./dom.js";
import { paragraph, token } from "./look.js";
import { number, percent, units, visible } from "./words.js";

const ruling = { method: 0, answer: 0 };

const sideOf = ({ texts }, attribution) => texts[attribution?.side || "source"] || Object.values(texts)[0];

export function classBars({ labels, p }) {
  const order = p.map((_, place) => place).sort((one, other) => p[other] - p[one]).slice(0, 40);
  return barList(
    order.map(
      (place, rank) => ({ label: visible(labels[place]), value: percent(p[place]), share: p[place], on: rank === 0 })
    ),
    "classes"
  );
}

function curves({ start, end, answers = [] }, width) {
  const [count, height, most] = [start.length, 120, Math.max(0.01, ...start, ...end)];
  const [first, past] = answers[ruling.answer] || [0, -1];
  const span = shape(
    "rect",
    {
      class: "span", x: (first / count) * width, width: Math.max(0, ((past - first + 1) / count) * width), y: 0, height
    }
  );
  return make("div", {},
    svgBox(
      width, height,
      { class: "plotted", role: "img", "aria-label": "probability of the answer’s start and end along the passage" },
      span, plot(start, width, height, 0, most, "start"), plot(end, width, height, 0, most, "end")
    ),
    fine(
      make("i", { class: "dot start" }), "start ", make("i", { class: "dot end" }),
      `end, along the passage (highest ${number(most)})`
    ));
}

function answersOf({ answers = [], none }, redraw) {
  const list = answers.map(([, , text, score], place) => {
    const point_ = () => { if (ruling.answer !== place) { ruling.answer = place; redraw(); } };
    return make("li", {}, make("button", { class: "answer", "aria-pressed": truth(place === ruling.answer), onpointerenter: point_, onclick: point_ },
      make("span", { dir: "auto" }, visible(text).slice(0, 200) || "∅"),
      make("span", { class: "value" }, number(score))));
  });
  return make(
    "div", {}, make("ol", { class: "barlist" }, ...list),
    typeof none === "number" ? fine(`no answer in the passage: ${percent(none)}`) : ""
  );
}

// The text with what counted for the answer: orange for, blue against.
function passage(record, attribution) {
  const side = sideOf(record, attribution);
  const list = units(side, false);
  const level = signedLevel(Math.max(1e-9, ...(attribution?.values || [0]).map(Math.abs)));
  const [first, past] = record.verdict?.answers?.[ruling.answer] || [0, -1];
  const tokens = list.map((unit, place) => {
    const value = attribution?.values[place];
    const one = token({ ...unit, label: unit.label.replace(/^▁/, "") }, "span", { title: value?.toPrecision(3) });
    one.classList.toggle("inspan", place >= first && place <= past);
    return value === undefined ? one : shadeIn(one, level(value), "signed");
  });
  return paragraph("the text", side, list, tokens);
}

function attributed({ attribution: all = [] }, redraw) {
  if (!all.length) return fine("How much each word counted (attribution) was not computed for this record.");
  const names = all.map((one, place) => [`${visible(one.method)}, of ${visible(one.of).slice(0, 40)}`, place]);
  const choose = (place) => { ruling.method = place; redraw(); };
  const { agreement } = all[ruling.method];
  return titled("what counted", row((all.length > 3 ? picker : choices)("attribution", names, ruling.method, choose)),
    signedBar("for", "against"),
    typeof agreement === "number" ? fine(
      `Agreement with where attention looked (rank correlation): ${number(agreement)}.`
    ) : "");
}

export const verdict = {
  key: "verdict", name: "Verdict",
  what: "What the model decided, and how sure it was. Below, the text coloured by attribution (orange speaks for the decision, blue against), computed apart from attention; their agreement is a number.",
  missing: (record) => (
    record.verdict || record.attribution?.length
      ? "" : "This record has no verdict: it is there for classified texts and for answers in a passage, or wherever attribution was computed."
  ),
  draw(stage, { record }, redraw) {
    const found = record.verdict;
    ruling.method = Math.min(ruling.method, Math.max(0, (record.attribution?.length || 0) - 1));
    const told = !found ? "" : found.labels ? titled("classes", classBars(found))
      : titled(
        "answers, the best first", answersOf(found, redraw), curves(found, Math.min(860, stage.clientWidth - 8))
      );
    stage.replaceChildren(told, passage(record, record.attribution?.[ruling.method]), attributed(record, redraw));
  },
  mark() {},
  table({ record }) {
    const found = record.verdict;
    if (found?.labels) return {
      caption: "How likely each class is", head: ["class", "probability"],
      rows: found.labels.map((name, place) => [visible(name), number(found.p[place])])
    };
    if (found) return {
      caption: "Answers, the best first", head: ["answer", "first token", "last token", "score"],
      rows: found.answers.map(([first, past, text, score]) => [visible(text), `${first}`, `${past}`, number(score)])
    };
    const one = record.attribution[ruling.method];
    return {
      caption: `${visible(one.method)} of ${visible(one.of)}`, head: ["token", "value"],
      rows: units(sideOf(record, one), false).map(
        (unit, place) => [unit.label, one.values[place]?.toPrecision(3) ?? ""]
      )
    };
  },
};
