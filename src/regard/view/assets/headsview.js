// Heads: every head's matrix at a glance, sorted and filtered; the chosen one enlarged.

import { pixels, rootLevel, sized } from "./colours.js";
import { block, fine, labelled, make, picker, root, row, titled, truth } from "./dom.js";
import { headsOf, metricName, metricOf, metricsOf, takeHead } from "./headmap.js";
import { matrix } from "./matrix.js";
import { dot, lineAt, remembered } from "./numbers.js";
import { own } from "./scene.js";
import { change, state } from "./state.js";
import { thumbsOf } from "./weights.js";
import { counted, number, siteOf } from "./words.js";

const wall = { locked: null, big: null };

// Keeps a head, to sort the others by likeness to it.
export function lockHead() {
  wall.locked = wall.locked ? null : [state.layer, state.heads[0]];
  change({ sort: wall.locked ? "likeness" : "layer" });
}

const likeness = (left, right) => dot(left, right) / (Math.sqrt(dot(left, left) * dot(right, right)) || 1);

function sorted(seen, thumbs) {
  const to = thumbs?.of(...(wall.locked || [state.layer, state.heads[0]]));
  const valueOf_ = ({ layer, place, head }) => (
    state.sort === "likeness" ? to && likeness(to, thumbs.of(layer, head)) : metricOf(seen, state.sort)?.[place][head]
  );
  const all = headsOf(seen).map((one) => ({ ...one, value: valueOf_(one) })).filter(
    (one) => !state.label || one.label === state.label
  );
  const up = state.sort === "entropy" || state.sort === "distance" ? 1 : -1;
  return state.sort === "layer" ? all : all.sort((one, other) => up * ((one.value ?? 0) - (other.value ?? 0)));
}

// The small pictures of a layer below one another, made once for each theme.
function sheetOf(seen, thumbs, layer) {
  const tall = seen.heads * thumbs.rows;
  return remembered(thumbs, `${layer} ${root.dataset.theme}`, () => pixels(
    lineAt(thumbs.all, seen.layers.indexOf(layer), tall * thumbs.columns), tall, thumbs.columns, rootLevel
  ));
}

// One canvas over all cards: a hundred small ones take a browser longer than what is in them.
function hang(group, seen, thumbs, found, size) {
  const pen = sized(group.lastChild, group.offsetWidth, group.offsetHeight);
  pen.imageSmoothingEnabled = false;
  group.querySelectorAll(".spot").forEach((spot, place) => {
    const { layer, head } = found[place];
    pen.drawImage(
      sheetOf(seen, thumbs, layer), 0, head * thumbs.rows, thumbs.columns, thumbs.rows,
      spot.offsetLeft, spot.offsetTop, size, size
    );
  });
}

function card({ layer, head, site, label, best, taken, value }, size) {
  const told = value === undefined ? label : number(value);
  return make("button", {
    class: "thumb", title: `${site} ${label}`, "aria-label": `${site}, ${label} ${told}`, "aria-pressed": truth(taken),
    style: { width: `${size + 10}px` },
    onpointerenter: () => change({ wish: [[layer, [head]]] }), onclick: (event) => takeHead(layer, head, event.shiftKey), ondblclick: () => change({ view: "align" }),
  }, make("i", { class: "spot", style: { height: `${size}px` } }),
  make(
    "span", {}, best ? make("b", { class: "best" }, "★ ") : null, `${layer}·${head} ${size < 56 && !best ? "" : told}`
  ));
}

export const heads = {
  key: "heads", name: "Heads",
  what: "Every head of every layer as a small picture: rows looked at columns. Sort by a measure or by likeness to the chosen head (l keeps it), filter by what heads mostly do, click to enlarge.",
  draw(stage, scene, redraw) {
    const { seen } = scene;
    const thumbs = thumbsOf(seen, redraw);
    if (!thumbs) return stage.replaceChildren(fine("opening …"));
    const found = sorted(seen, thumbs);
    const names = [...new Set(headsOf(seen).map((one) => one.label))].filter(Boolean).sort();
    const sorts = [
      ["layer and head", "layer"], ...metricsOf(seen).map((name) => [metricName(name), name]),
      ["likeness to the chosen head", "likeness"]
    ];
    const wide = found.length > 60 ? 240 : 300;
    const fits = (room) => Math.min(84, Math.floor(room / seen.heads) - 16); // a row for each layer
    const stacked = fits(stage.clientWidth - wide - 40) <= 34; // the enlarged one stands below then
    const fitting = fits(stage.clientWidth - (stacked ? 8 : wide + 40));
    const inRows = state.sort === "layer" && !state.label && fitting > 34;
    const size = inRows ? fitting : 64;
    wall.big = matrix({
      rows: scene.rows, columns: scene.columns, values: scene.shown, width: wide + 10, height: wide, labels: false,
      own: own(scene), pick: () => change({ view: "align" }),
      cell: Math.min(wide / Math.max(scene.columns.length, scene.rows.length), 24),
      name: `layer ${scene.layer}, head ${scene.heads[0]}, enlarged`,
    });
    const group = make(
      "div",
      {
        class: size < 56 ? "heads small" : "heads", role: "group", "aria-label": "heads",
        style: { gridTemplateColumns: `repeat(${inRows ? seen.heads : "auto-fill"}, ${size + 10}px)` }
      },
      ...found.map((one) => card(one, size)), make("canvas", { class: "pictures", "aria-hidden": "true" })
    );
    stage.replaceChildren(
      row(labelled("Sorted by ", picker("sort heads by", sorts, state.sort, (sort) => change({ sort }))),
        names.length > 1 ? labelled(
          "showing ",
          picker(
            "filter heads by label", [["all kinds", ""], ...names.map((label) => [label, label])], state.label,
            (label) => change({ label })
          )
        ) : "",
        fine(
          `${counted(found.length, "head")}${wall.locked ? `; likeness to ${siteOf(seen, ...wall.locked)} (l lets go)` : ""}`
        )),
      make("div", { class: stacked && inRows ? "wall stacked" : "wall" },
        group,
        block("big", titled(siteOf(seen, scene.layer, scene.heads[0]), wall.big.element))));
    wall.big.layout();
    hang(group, seen, thumbs, found, size);
    return this.mark();
  },
  ready: (...shown) => wall.big?.ready(...shown),
  mark: () => wall.big?.mark(state.q, state.k),
  table({ seen }) {
    const names = metricsOf(seen);
    return {
      caption: "What each head did", head: ["head", "mostly", ...names.map(metricName)],
      rows: sorted(seen, thumbsOf(seen, () => {})).map(
        ({ site, label, place, head }) => [
          site, label, ...names.map((name) => number(metricOf(seen, name)[place][head]))
        ]
      ),
    };
  },
};
