// Positions: positional encodings, and the similarity of any two positions.

import { dot, loadOnce, maxAbs, range, rowSlice } from "./arrays.js";
import { decodeBlock } from "./codec.js";
import { signedBar, signedLevel, sparkline } from "./colours.js";
import { div, element, smallText, svgBox, svgElement, titledBlock } from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { emptyTable } from "./html-table.js";
import { escapeInvisible, formatSigned, formatWeight } from "./labels.js";

const MEANINGS = {
  sinusoidal: "sines and cosines of slower and slower waves are added to each word.",
  learned: "a vector for each position was learned, and is added to each word.",
  rotary: "queries and keys are turned by an angle that grows with the position: only the distance counts.",
  relative: "scores get a bonus that depends on the distance alone.",
};
const MAX_POSITIONS = 256;
const MAP_HEIGHT = 380;
const PLOT_HEIGHT = 64;
const OFFSETS = [1, 2, 4, 8, 16]; // of the table
const selected = { position: 0, heatmaps: [], plot: null };

const positionCodes = (block, redraw) =>
  loadOnce(block, async () => cosineSimilarities(await decodeBlock(block), ...block.shape), redraw);

function cosineSimilarities(values, total, dimensions) {
  const count = Math.min(total, MAX_POSITIONS);
  const unitVectors = range(count, (position) => {
    const code = rowSlice(values, position, dimensions);
    const norm = Math.hypot(...code) || 1;
    return code.map((value) => value / norm);
  });
  const similarities = new Float32Array(count * count);
  for (let row = 0; row < count; row += 1) {
    for (let column = 0; column <= row; column += 1) {
      const similarity = dot(unitVectors[row], unitVectors[column]);
      similarities[row * count + column] = similarity;
      similarities[column * count + row] = similarity;
    }
  }
  return { values: values.subarray(0, count * dimensions), count, total, dimensions, similarities };
}

const indexUnits = (count) => range(count, (index) => ({ label: `${index}`, members: [index] }));

// Marks a position in both heatmaps and plots its similarity to all others.
function selectPosition({ count, similarities }, row, column) {
  if (row >= 0) selected.position = row;
  const { position } = selected;
  selected.heatmaps.forEach(([map, columns]) => map.mark(position, column < columns ? column : -1));
  const width = Math.max(200, Math.min(520, count * 6));
  const min = Math.min(0, ...similarities);
  const x = ((position + 0.5) / count) * width;
  const name = `similarity of position ${position} to each position`;
  selected.plot.replaceChildren(
    svgBox(
      width,
      PLOT_HEIGHT,
      { class: "plotted", role: "img", "aria-label": name },
      sparkline(rowSlice(similarities, position, count), width, PLOT_HEIGHT, min, 1),
      svgElement("line", { class: "axis", x1: x, x2: x, y1: 0, y2: PLOT_HEIGHT }),
    ),
    smallText(`cosine similarity of position ${position} to every other position`),
  );
}

function positionHeatmap(codes, width, { columns, values, max, name, describeCell }) {
  const { count } = codes;
  return new Heatmap({
    rows: indexUnits(count),
    columns: indexUnits(columns),
    values,
    level: signedLevel(max),
    ramp: "signed",
    width,
    height: MAP_HEIGHT,
    name,
    describeCell,
    isSelfAttention: true,
    cellWidth: Math.min(20, (width - 50) / columns),
    cellHeight: Math.max(1.5, Math.min(18, MAP_HEIGHT / count)),
    onHover: (row, column) => selectPosition(codes, row, column),
    onPick: () => {},
  });
}

function codeHeatmap(codes, width) {
  const { values, dimensions } = codes;
  return positionHeatmap(codes, width, {
    columns: dimensions,
    values,
    max: maxAbs(values),
    name: "positional encodings: rows are positions, columns are dimensions",
    describeCell: (row, column) =>
      `position ${row}, dimension ${column}: ${formatSigned(values[row * dimensions + column])}`,
  });
}

function similarityHeatmap(codes, width) {
  const { similarities, count } = codes;
  return positionHeatmap(codes, width, {
    columns: count,
    values: similarities,
    max: 1,
    name: "similarity of positions",
    describeCell: (row, column) =>
      `positions ${row} and ${column}: ${formatWeight(similarities[row * count + column])}`,
  });
}

export const positions = {
  key: "positions",
  name: "Positions",
  description:
    "Attention alone ignores word order, so each position has an encoding. Left: the encoding of each position, one per row. Right: the cosine similarity of every two encodings.",
  missing: (record) =>
    record.positions ? "" : "This record has no positional encodings: the model has none, or they were not stored.",
  draw(stage, { record }, redraw) {
    const { kind } = record.positions;
    const codes = positionCodes(record.positions, redraw);
    if (!codes) {
      stage.replaceChildren(smallText("loading …"));
      return;
    }
    const { count, total, dimensions } = codes;
    const width = stage.clientWidth > 684 ? (stage.clientWidth - 24) / 2 : stage.clientWidth;
    const codeMap = codeHeatmap(codes, width);
    const similarityMap = similarityHeatmap(codes, width);
    selected.heatmaps = [
      [codeMap, dimensions],
      [similarityMap, count],
    ];
    selected.position = Math.min(selected.position, count - 1);
    selected.plot = element("div");
    const truncation = total > count ? ` The first ${count} of ${total} positions.` : "";
    const summary = `${escapeInvisible(kind)}: ${MEANINGS[kind] || ""}${truncation}`;
    stage.replaceChildren(
      element("p", { class: "note lead" }, summary),
      div(
        "pair",
        titledBlock(`codes, ${count} positions × ${dimensions}`, codeMap.element),
        titledBlock("similarity of positions", similarityMap.element),
      ),
      selected.plot,
      signedBar(formatWeight(maxAbs(codes.values))),
    );
    selected.heatmaps.forEach(([map]) => map.layout());
    selectPosition(codes, selected.position, -1);
  },
  mark() {},
  table({ record }) {
    const codes = positionCodes(record.positions, () => {});
    if (!codes) return emptyTable("Positional encodings are being loaded");
    const { count, similarities } = codes;
    const offsets = OFFSETS.filter((offset) => offset < count);
    const similarity = (position, offset) =>
      position + offset < count ? formatWeight(similarities[position * count + position + offset]) : "";
    return {
      caption: "Similarity of each position to later ones",
      head: ["position", ...offsets.map((offset) => `+${offset}`)],
      rows: range(count, (position) => [`${position}`, ...offsets.map((offset) => similarity(position, offset))]),
    };
  },
};
