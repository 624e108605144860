// Maths: self-attention in six steps with the numbers of this head: query, keys, products, scale, softmax, mix.

import { decoded } from "./codes.js";
import { pixels, rootLevel, shadeIn, signedBar, signedLevel } from "./colours.js";
import { block, button, clamp, fine, labelled, make, notice, picker, row, truth } from "./dom.js";
import { arrived, dot, highest, lineAt, total, upTo } from "./numbers.js";
import { lookers, sidesOf } from "./scene.js";
import { change, state } from "./state.js";
import { emptyTable } from "./tableform.js";
import { ranked } from "./tables.js";
import { number, signed, siteOf } from "./words.js";

const WRITTEN = 14; // keys that are written out
const STEPS = [
  ["query", "The word asks with a vector of its own: its query."],
  ["keys", "Every word that may be looked at answers with a vector: its key."],
  ["score", "Query and key are multiplied number by number and added up: the more alike, the higher."],
  ["scale", "The scores are divided by the root of the vectors’ length, so that they do not grow with it."],
  ["softmax", "Softmax turns scores into weights that add up to 1."],
  ["mix", "Each word’s value is taken by its weight; their sum is what the head passes on."],
];
const at = { step: 6, tip: null };

const insideOf = (record) => (record.inside || []).find(
  (one) => one.attention === state.attn && one.layer === state.layer && one.head === state.heads[0]
);

const openInside = (inside, redraw) => arrived(inside, async () => {
  const [q, k, v, scored] = await Promise.all(
    ["q", "k", "v", "scores"].map((name) => inside[name] && decoded(inside[name]))
  );
  return { q, k, v, scored, width: inside.q.shape[1], deep: inside.v?.shape[1] || 0 };
}, redraw);

// A vector as a strip of colour; pointing at it tells a number.
function strip(values, most, told) {
  const canvas = pixels(values, 1, values.length, signedLevel(most), "signed");
  canvas.className = "vector";
  canvas.setAttribute("role", "img");
  canvas.setAttribute(
    "aria-label", `${values.length} numbers from ${signed(Math.min(...values))} to ${signed(Math.max(...values))}`
  );
  canvas.addEventListener("pointermove", (event) => {
    const bounds = canvas.getBoundingClientRect();
    at.tip.textContent = told(
      clamp(Math.floor(((event.clientX - bounds.left) / bounds.width) * values.length), 0, values.length - 1)
    );
  });
  return canvas;
}

// Everything about one query: the numbers of all six steps.
function worked({ q, k, v, scored: given_, width, deep }, query, count) {
  const asks = lineAt(q, query, width);
  const products = upTo(count, (key) => dot(asks, lineAt(k, key, width)));
  const plainly = products.map((one) => one / Math.sqrt(width));
  const scored = given_ ? Array.from(lineAt(given_, query, count)) : plainly;
  const allowed = scored.map((one) => one > -60000);
  const most = Math.max(...scored.filter((_, key) => allowed[key]));
  const powers = scored.map((one, key) => (allowed[key] ? Math.exp(one - most) : 0));
  const weights = powers.map((one) => one / total(powers));
  const sum = new Float32Array(deep);
  if (v) weights.forEach(
    (weight, key) => lineAt(v, key, deep).forEach((value, place) => { sum[place] += weight * value; })
  );
  const plain = plainly.every(
    (one, key) => !allowed[key] || Math.abs(one - scored[key]) < 0.02 * (1 + Math.abs(scored[key]))
  );
  return { asks, products, scored, allowed, weights, sum, plain };
}

// Maths is done on tokens: the token that the chosen word begins with.
function chosen(scene) {
  const { rows, columns } = sidesOf(scene.record, scene.seen, "piece", true);
  return { rows, keys: columns, query: scene.rows[lookers(scene)[0]]?.members[0] ?? 0 };
}

function elsewhere(record) {
  const seen = (name) => record.attention.find((one) => one.name === name) || { name };
  return [notice(
    "Queries and keys of this head were not kept: they are large, and kept only when they are asked for. Kept are:"
  ),
    row(
      ...record.inside.slice(0, 24).map(
        (one) => button(
          siteOf(seen(one.attention), one.layer, one.head),
          () => change({ attn: one.attention, layer: one.layer, heads: [one.head] })
        )
      )
    )];
}

export const maths = {
  key: "maths", name: "Maths",
  what: "One word and one head, worked through in the six steps of attention with this model’s own numbers. Space goes to the next step; point at a strip for its numbers and products.",
  missing: (record) => (
    record.inside?.length
      ? "" : "This record was made without the queries, keys and values of its heads: they are large, and kept only when they are asked for."
  ),
  draw(stage, scene, redraw) {
    const inside = insideOf(scene.record);
    if (!inside) return stage.replaceChildren(...elsewhere(scene.record));
    const found = openInside(inside, redraw);
    if (!found) return stage.replaceChildren(fine("opening …"));
    const { v, width, deep } = found;
    const { rows, keys, query } = chosen(scene);
    const all = worked(found, query, keys.length);
    const [mostKey, mostValue] = [highest(found.k), highest(v || [])];
    const order = ranked(all.weights, WRITTEN).sort((one, other) => one - other);
    const cell = (step, tag, ...content) => make(tag, { class: at.step < step ? "unseen" : "" }, ...content);
    const names = ["key", "q · k", all.plain ? `÷ √${width}` : "score", "weight", "× value"];
    const body = order.map((key) => {
      const [vector, weight] = [lineAt(found.k, key, width), all.weights[key]];
      const given_ = v && lineAt(v, key, deep);
      return make("tr", { class: all.allowed[key] ? "" : "barred" }, make(
        "th", { scope: "row", dir: "auto" }, keys[key].label.slice(0, 40)
      ),
        cell(
          2, "td",
          strip(
            vector, mostKey,
            (place) => `q[${place}] · k[${place}] = ${signed(all.asks[place])} × ${signed(vector[place])} = ${signed(all.asks[place] * vector[place])}`
          )
        ),
        cell(3, "td", all.products[key].toFixed(2)),
        cell(4, "td", all.allowed[key] ? all.scored[key].toFixed(2) : "barred"),
        cell(5, "td", shadeIn(make("span", { class: "ink" }, number(weight)), rootLevel(weight))),
        cell(
          6, "td",
          v ? strip(
            given_.map((value) => value * weight), mostValue,
            (place) => `${number(weight)} × ${signed(given_[place])} = ${signed(weight * given_[place])}`
          ) : ""
        ));
    });
    const rest = 1 - total(order.map((key) => all.weights[key]));
    const shown = (name, values, text, sign) => block("vectorline", make("span", { class: "looker", dir: "auto" }, name),
      strip(values, highest(values), (place) => `${sign}[${place}] = ${signed(values[place])}`),
      make("span", { class: "fine" }, text)
    );
    at.tip = make("p", { class: "fine tipline" }, " ");
    stage.replaceChildren(
      make(
        "ol", { class: "six" },
        ...STEPS.map(
          ([name], place) => make(
            "li", {},
            make(
              "button",
              { "aria-pressed": truth(at.step === place + 1), onclick: () => { at.step = place + 1; redraw(); } },
              `${place + 1} ${name}`
            )
          )
        )
      ),
      make(
        "p", { class: "saying" }, STEPS[at.step - 1][1],
        at.step === 4 && !all.plain ? " This head scores otherwise, or with a bias: its own scores are shown." : ""
      ),
      shown(rows[query].label.slice(0, 40), all.asks, `query, ${width} numbers`, "q"),
      block("tabled", make(
          "table", { class: "mathstable" },
          make("thead", {}, make("tr", {}, make("th"), ...names.map((name, place) => cell(place + 2, "th", name)))),
          make("tbody", {}, ...body)
        )
      ),
      keys.length > order.length ? fine(
        `+ ${keys.length - order.length} others, which hold ${number(rest)} of the weight`
      ) : "",
      at.step > 5 && v ? shown("Σ", all.sum, "what the head passes on", "sum") : "", at.tip,
      signedBar("+", "−"),
      row(button("Next step", () => this.space(redraw), { title: "Space" }),
        labelled(
          "for ",
          picker(
            "token", rows.map((unit, place) => [unit.label.slice(0, 40), place]), query,
            (place) => change(
              { q: Math.max(0, scene.rows.findIndex((unit) => unit.members.includes(place))), pins: [] }
            )
          )
        )));
    return undefined;
  },
  mark: (scene, redraw) => redraw(),
  table(scene) {
    const inside = insideOf(scene.record);
    const found = inside && openInside(inside, () => {});
    if (!found) return emptyTable("Queries and keys of this head were not kept");
    const { rows, keys, query } = chosen(scene);
    const all = worked(found, query, keys.length);
    return {
      caption: `How ${rows[query].label} comes to its weights`, head: ["key", "q · k", "score", "weight"],
      rows: keys.map(
        (unit, key) => [
          unit.label, all.products[key].toFixed(3), all.allowed[key] ? all.scored[key].toFixed(3) : "barred",
          number(all.weights[key])
        ]
      )
    };
  },
  space(redraw) { at.step = (at.step % STEPS.length) + 1; redraw(); },
};
