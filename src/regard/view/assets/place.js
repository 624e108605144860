// Place: what tells the model where a word is: the codes of positions, and how alike any two positions are.

import { decoded } from "./codes.js";
import { plot, signedBar, signedLevel, svgBox } from "./colours.js";
import { block, fine, make, shape, titled } from "./dom.js";
import { matrix } from "./matrix.js";
import { arrived, dot, highest, lineAt, upTo } from "./numbers.js";
import { emptyTable } from "./tableform.js";
import { number, signed, visible } from "./words.js";

const MEANT = {
  sinusoidal: "sines and cosines of slower and slower waves are added to each word.",
  learned: "a vector for each position was learned, and is added to each word.",
  rotary: "queries and keys are turned by an angle that grows with the position: only the distance counts.",
  relative: "scores get a bonus that depends on the distance alone.",
};
const POSITIONS = 256; // that are drawn
const spot = { row: 0, maps: [] };

const codesOf = (places, redraw) => arrived(places, async () => alike(await decoded(places), ...places.shape), redraw);

function alike(values, all, wide) {
  const count = Math.min(all, POSITIONS);
  const codes = upTo(count, (place) => lineAt(values, place, wide));
  const units_ = codes.map((code) => code.map((value) => value / (Math.hypot(...code) || 1)));
  const table = new Float32Array(count * count);
  for (let one = 0; one < count; one += 1) {
    for (
      let other = 0; other <= one; other += 1
    ) table[one * count + other] = table[other * count + one] = dot(units_[one], units_[other]);
  }
  return { values: values.subarray(0, count * wide), count, wide, all, table };
}

const numbered = (count) => upTo(count, (place) => ({ label: `${place}`, members: [place] }));

function hovered({ count, table }, row, column) {
  if (row >= 0) spot.row = row;
  spot.maps.forEach(([map, columns]) => map.mark(spot.row, column < columns ? column : -1));
  const [width, height, low] = [Math.max(200, Math.min(520, count * 6)), 64, Math.min(0, ...table)];
  const middle = ((spot.row + 0.5) / count) * width;
  spot.line.replaceChildren(
    svgBox(width, height, {
      class: "plotted", role: "img", "aria-label": `likeness of position ${spot.row} to each position`
    },
      plot(lineAt(table, spot.row, count), width, height, low, 1),
      shape("line", { class: "axis", x1: middle, x2: middle, y1: 0, y2: height })),
    fine(`how alike position ${spot.row} is to each of the others`));
}

export const placeView = {
  key: "place", name: "Place",
  what: "A model that looks everywhere at once must be told where each word stands. Left: the code of each position, a row each. Right: how alike any two codes are (cosine).",
  missing: (record) => (
    record.places ? "" : "This record has no position codes: the model has none of its own, or they were not kept."
  ),
  draw(stage, { record: { places } }, redraw) {
    const found = codesOf(places, redraw);
    if (!found) return stage.replaceChildren(fine("opening …"));
    const { values, count, wide, table } = found;
    const most = highest(values);
    const width = stage.clientWidth > 684 ? (stage.clientWidth - 24) / 2 : stage.clientWidth;
    const one = (columns, numbers_, limit, name, say) => matrix({
      rows: numbered(count), columns: numbered(columns), values: numbers_, level: signedLevel(limit), ramp: "signed",
      width, height: 380, name, say, own: true,
      cell: Math.min(20, (width - 50) / columns), tall: Math.max(1.5, Math.min(18, 380 / count)),
      hover: (y, x) => hovered(found, y, x), pick: () => {},
    });
    const codes = one(
      wide, values, most, "position codes: rows are positions, columns are dimensions",
      (y, x) => `position ${y}, dimension ${x}: ${signed(values[y * wide + x])}`
    );
    const near = one(
      count, table, 1, "likeness of positions", (y, x) => `positions ${y} and ${x}: ${number(table[y * count + x])}`
    );
    spot.maps = [[codes, wide], [near, count]];
    spot.row = Math.min(spot.row, count - 1);
    spot.line = make("div");
    const fewer = found.all > count ? ` The first ${count} of ${found.all} positions.` : "";
    stage.replaceChildren(
      make("p", { class: "fine lead" }, `${visible(places.kind)}: ${MEANT[places.kind] || ""}${fewer}`),
      block("pair", titled(`codes, ${count} positions × ${wide}`, codes.element),
        titled("likeness of positions", near.element)
      ),
      spot.line, signedBar(number(most)));
    spot.maps.forEach(([map]) => map.layout());
    hovered(found, spot.row, -1);
    return undefined;
  },
  mark() {},
  table({ record }) {
    const found = codesOf(record.places, () => {});
    if (!found) return emptyTable("Position codes are being opened");
    const { count, table } = found;
    const offsets = [1, 2, 4, 8, 16].filter((step) => step < count);
    return {
      caption: "How alike each position is to those after it", head: ["position", ...offsets.map((step) => `+${step}`)],
      rows: upTo(
        count,
        (place) => [
          `${place}`,
          ...offsets.map((step) => (place + step < count ? number(table[place * count + place + step]) : ""))
        ]
      ),
    };
  },
};
