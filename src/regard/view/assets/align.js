// Align: the matrix of source and target, the highest weight of each row dotted, with coverage and confidence.

import { button, fine, make, row } from "./dom.js";
import { isBest } from "./headmap.js";
import { matrix, point } from "./matrix.js";
import { total } from "./numbers.js";
import { lookers, opened, own } from "./scene.js";
import { change, state } from "./state.js";
import { weightTable } from "./tableform.js";
import { entropy, rowOf, transposed } from "./tables.js";
import { kindMeaning, percent } from "./words.js";

const SCORED = 400000; // weights that coverage and confidence are taken of
const now = { big: null };
const mean = (values) => total(values) / Math.max(1, values.length);

// Coverage as the deviation from one look a column; confidence as one over the number of places a row spreads over.
export function scores({ rows, columns, mean: table }) {
  const covered = new Float32Array(columns.length);
  const best = [];
  const sure = rows.map((_, place) => {
    const seen = rowOf(table, columns.length, [place]);
    let high = 0;
    seen.forEach((weight, column) => { covered[column] += weight; if (weight > seen[high]) high = column; });
    if (seen[high] > 0.1) best.push([place, high]);
    return 2 ** -entropy(seen);
  });
  const plain = [...covered].filter((_, column) => !columns[column].special);
  return {
    covered, sure, best, coverage: Math.exp(-mean(plain.map((one) => Math.log(1 + (1 - one) ** 2)))),
    confidence: mean(sure)
  };
}

export function goToBest() {
  const best = opened.record.view;
  if (best?.attn) change({ attn: best.attn, layer: best.layer, heads: [best.head] });
}

export const align = {
  key: "align", name: "Align",
  what: "Rows looked at columns; the dot marks each row’s highest weight. Bars on the right: how sure a row is; below: how much each column was looked at in all. Ctrl and the wheel zoom.",
  draw(stage, scene) {
    const { rows, columns, shown } = scene;
    const turned = state.turned;
    const few = rows.length * columns.length <= SCORED;
    const { covered = [], sure, best, coverage, confidence } = few ? scores(scene) : {};
    const most = Math.max(1, ...covered);
    const below = few && Array.from(covered, (one) => one / most);
    const plain = { rows, columns, values: shown, dots: best, right: sure, below, flip: scene.to.dir === "rtl" };
    const over = turned && {
      rows: columns, columns: rows, values: transposed(shown, rows.length, columns.length),
      dots: best?.map(([y, x]) => [x, y]), right: below, below: sure,
      flip: scene.from.dir === "rtl", sign: "←", hover: (y, x) => point(x, y), turned,
    };
    now.big = matrix({
      ...(turned ? over : plain), own: own(scene), width: stage.clientWidth,
      height: Math.max(320, Math.min(560, window.innerHeight - 330)),
      name: `attention weights, ${rows.length} rows by ${columns.length} columns; arrow keys move, v shows a table`,
    });
    const other = opened.record.view?.measured && !isBest(scene.seen, scene.layer, scene.heads[0]);
    stage.replaceChildren(
      row(make("p", { class: "fine lead" }, `${kindMeaning(scene)}.`), other ? button(
        "★ Best aligning head", goToBest, { title: "the head that aligns best (b)" }
      ) : null,
        button(
          "Turn", () => change({ turned: !turned }), { title: "rows become columns", "aria-pressed": String(turned) }
        ),
        button("−", () => now.big.zoom(1 / 1.5), { "aria-label": "zoom out" }),
        button("+", () => now.big.zoom(1.5), { "aria-label": "zoom in" })),
      now.big.element,
      fine(!few ? "" :
        `Coverage ${percent(coverage)} (100 %: each word was looked at once), confidence ${percent(confidence)} (100 %: each row looked at one place).`
      ));
    now.big.layout();
    this.mark(scene);
  },
  ready: (...shown) => state.turned || now.big.ready(...shown),
  mark(scene) {
    const [y] = lookers(scene);
    now.big.mark(...(state.turned ? [state.k, y] : [y, state.k]));
  },
  table: (scene) => weightTable("Attention weights", scene.rows, scene.columns, scene.shown, lookers(scene)[0]),
};
