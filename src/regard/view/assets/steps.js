// Steps: how the output came about, token by token: what was likely, what was looked at, which beams lived.

import { levelBy, shadeIn, svgBox } from "./colours.js";
import { barList, block, button, clamp, fine, fitted, labelled, make, range, row, shape, titled, truth } from "./dom.js";
import { paragraph, token } from "./look.js";
import { total } from "./numbers.js";
import { redo } from "./running.js";
import { opened, seenOf, sidesOf, tablesOf } from "./scene.js";
import { served, shelf } from "./shelf.js";
import { change, state } from "./state.js";
import { average, rowOf } from "./tables.js";
import { counted, number, percent, visible } from "./words.js";

const walk = { timer: 0, heat: 1 };
const said = (text) => visible(text.replace(/^ /, "▁")) || "∅";
const last = () => opened.record.steps.length - 1;
const go = (step) => change({ step: clamp(step, 0, last()) });

// Where steps looked: the chosen attention if its rows were produced, else the first such.
function looking(record, redraw) {
  const produced = record.attention.filter((one) => one.rowmeans === "produced" || one.causal);
  const seen = produced.find((one) => one.name === state.attn) || produced[0];
  if (!seen) return null;
  const sides = sidesOf(record, seen, "piece", true);
  const chosen = seen === seenOf(record);
  const layer = chosen ? state.layer : seen.layers.at(-1);
  const tables = tablesOf(record, seen, layer, chosen ? state.heads : [0], sides, redraw);
  return tables && { seen, sides, layer, table: average(tables) };
}

// Probabilities at another temperature, among the candidates that were kept.
function warmed(top) {
  if (walk.heat === 1) return top.map(([, share]) => share);
  const powers = top.map(([, share]) => share ** (1 / walk.heat));
  return powers.map((one) => one / (total(powers) || 1));
}

export function play(on = !walk.timer) {
  clearInterval(walk.timer);
  walk.timer = 0;
  if (on) {
    if (state.step >= last()) go(0);
    walk.timer = setInterval(
      () => (state.view !== "steps" || state.step >= last() ? play(false) : go(state.step + 1)), 700
    );
  }
  walk.play.textContent = walk.timer ? "Pause" : "Play";
}

// Which beam of each step the answer came from.
function winners(all) {
  let place = -1;
  return all.map((_, back) => {
    const { token: written, beams = [] } = all[all.length - 1 - back];
    if (place < 0) place = beams.findIndex(([, one]) => one === written);
    const won = place;
    place = beams[place]?.[0] ?? -1;
    return won;
  }).reverse();
}

function beamTree(all) {
  const most = Math.max(0, ...all.map((step) => step.beams?.length || 0));
  if (most < 2) return "";
  const [wide, tall, won] = [92, 24, winners(all)];
  const marks = all.slice(0, 200).flatMap((step, column) => (step.beams || []).flatMap(([parent, text, score], beam) => {
    const [x, y, on] = [10 + column * wide, 14 + beam * tall, won[column] === beam];
    const from = 14 + parent * tall;
    const end = x - 4;
    const start = Math.min(
      end - 12, x - wide + 8 + 7 * Math.min(9, said(all[column - 1]?.beams?.[parent]?.[1] ?? "").length)
    );
    return [
      column && parent >= 0 ? shape(
        "path",
        {
          class: on && won[column - 1] === parent ? "twig on" : "twig",
          d: `M${start} ${from}C${end - 6} ${from} ${start + 6} ${y} ${end} ${y}`
        }
      ) : "",
      shape(
        "text", { class: on ? "leaf on" : "leaf", x, y: y + 4 }, shape("title", {}, `${said(text)}, score ${score}`),
        fitted(said(text), wide - 30)
      ),
    ];
  }));
  const drawing = svgBox(Math.min(200, all.length) * wide + 10, most * tall + 8, {}, ...marks);
  return titled(
    "beams",
    make(
      "div",
      {
        class: "beams", tabindex: "0", role: "img",
        "aria-label": `beam tree: ${counted(most, "beam")}; the answer’s path is bold`
      },
      drawing
    )
  );
}

function entropies(all) {
  const [width, tall] = [clamp(all.length * 18, 160, 640), 44];
  const most = Math.max(0.5, ...all.map((step) => step.entropy || 0));
  const wide = width / all.length;
  walk.bars = all.map((step, place) => {
    const height = Math.max(1, ((step.entropy || 0) / most) * tall);
    return shape(
      "rect",
      {
        class: "pulse", x: place * wide + 1, width: Math.max(1, wide - 2), y: tall - height, height,
        onclick: () => go(place)
      }
    );
  });
  return titled(
    "entropy",
    svgBox(width, tall, { role: "img", class: "plotted", "aria-label": "entropy of each step" }, ...walk.bars),
    fine(`how undecided the model was at each step (up to ${most.toFixed(1)} bits)`)
  );
}

export const steps = {
  key: "steps", name: "Steps",
  what: "The output as it was written: bars are the likeliest next tokens, the source is shaded by where the chosen head looked, the tree shows the beams kept.",
  missing: (record) => (
    record.steps?.length
      ? "" : "Nothing was written step by step in this record: steps are kept for translations and continued texts."
  ),
  draw(stage, scene, redraw) {
    const { steps: all, texts } = scene.record;
    walk.looks = looking(scene.record, redraw);
    walk.tokens = all.map((step, place) => token({ label: said(step.token) }, "button", { onclick: () => go(place) }));
    walk.range = range("step", 0, all.length - 1, go);
    walk.play = button("Play", () => play(), { title: "walk through the steps (Space)" });
    walk.about = fine();
    walk.top = make("div");
    const { seen, sides, layer } = walk.looks || {};
    walk.source = sides?.columns.map((unit) => token(unit));
    const heat = make("output", {}, walk.heat.toFixed(1));
    const warmth = range(
      "temperature", 10 * walk.heat, 25,
      (tenths) => { walk.heat = Math.max(1, tenths) / 10; heat.textContent = walk.heat.toFixed(1); this.mark(scene); }
    );
    stage.replaceChildren(
      row(walk.play, walk.range, walk.about), paragraph("written", texts.target, all, walk.tokens),
      seen ? paragraph(
        `where ${visible(seen.name)}, layer ${layer}, looked`, sides.to, sides.columns, walk.source
      ) : "",
      block("pair", titled(
          "likeliest next tokens", walk.top, labelled("temperature ", warmth, heat),
          served && shelf.run ? fine("Choose another token and the model writes on from there.") : ""
        ),
        entropies(all)),
      beamTree(all));
    this.mark(scene);
  },
  mark({ record: { steps: all } }) {
    const place = clamp(state.step, 0, all.length - 1);
    const step = all[place];
    walk.range.value = place;
    walk.range.setAttribute("aria-valuetext", said(step.token));
    walk.about.textContent = `step ${place + 1} of ${all.length}: ${said(step.token)}, ${percent(step.p)} likely, ${(step.entropy || 0).toFixed(2)} bits`;
    walk.tokens.forEach((one, at) => {
      one.classList.toggle("later", at > place);
      one.setAttribute("aria-pressed", truth(at === place));
    });
    walk.bars.forEach((bar, at) => bar.classList.toggle("on", at === place));
    const [top, before] = [step.top || [], all.slice(0, place).map((one) => one.token)];
    const warm = warmed(top);
    walk.top.replaceChildren(barList(top.map(([text], at) => ({
      label: said(text), value: number(warm[at]), share: warm[at], on: text === step.token,
      press: served && shelf.run && text !== step.token && (() => redo({ prefix: [...before, text] })),
    })), "likeliest next tokens"));
    if (!walk.looks) return;
    const seen = rowOf(walk.looks.table, walk.source.length, [Math.min(place, walk.looks.sides.rows.length - 1)]);
    walk.source.forEach((one, at) => shadeIn(one, levelBy(state.norm)(seen[at])));
  },
  table: ({ record }) => ({
    caption: "Each step of the output", head: ["token", "probability", "entropy (bits)", "others that were likely"],
    on: state.step, pick: go,
    rows: record.steps.map(
      ({ token: text, p, entropy: bits = 0, top = [] }) => [
        said(text), number(p), bits.toFixed(2),
        top.filter(([one]) => one !== text).slice(0, 4).map(
          ([one, share]) => `${said(one)} ${number(share)}`
        ).join(", ")
      ]
    ),
  }),
  left: () => go(state.step - 1), right: () => go(state.step + 1), space: () => play(),
};
