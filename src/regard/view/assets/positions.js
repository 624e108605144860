// Positions: positional encodings, and the similarity of any two positions.

import { dot, loadOnce, maxAbs, range, rowSlice } from "./arrays.js";
import { decodeBlock } from "./codec.js";
import { signedBar, signedLevel, sparkline } from "./colours.js";
import { div, element, smallText, svgBox, svgElement, titledBlock } from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { emptyTable } from "./html-table.js";
import { escapeInvisible, formatSigned, formatWeight } from "./labels.js";
import { term } from "./terms.js";

const MEANINGS = {
  // by the name of the scheme
  sinusoidal: "sines and cosines of increasing wavelengths are added to the embedding of each token.",
  learned: "a learned vector per position is added to the embedding of each token.",
  rotary:
    "queries and keys are rotated by an angle that grows with the position, so that scores depend on the distance.",
  relative: "a learned bias that depends on the distance is added to the scores.",
  alibi: "a bias that falls linearly with the distance is added to the scores.",
};
const MAX_POSITIONS = 256;
const MAP_HEIGHT = 380;
const PLOT_HEIGHT = 64;
const OFFSETS = [1, 2, 4, 8, 16]; // of the table
const selected = { position: 0, heatmaps: [], plot: null };

const positionEncodings = (block, redraw) =>
  loadOnce(block, async () => cosineSimilarities(await decodeBlock(block), ...block.shape), redraw);

function cosineSimilarities(values, total, dimensions) {
  const count = Math.min(total, MAX_POSITIONS);
  const unitVectors = range(count, (position) => {
    const encoding = rowSlice(values, position, dimensions);
    const norm = Math.hypot(...encoding) || 1;
    return encoding.map((value) => value / norm);
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

function positionHeatmap(encodings, width, { columns, values, max, name, describeCell }) {
  const { count } = encodings;
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
    onHover: (row, column) => selectPosition(encodings, row, column),
    onPick: () => {},
  });
}

function encodingHeatmap(encodings, width) {
  const { values, dimensions } = encodings;
  return positionHeatmap(encodings, width, {
    columns: dimensions,
    values,
    max: maxAbs(values),
    name: "positional encodings: rows are positions, columns are dimensions",
    describeCell: (row, column) =>
      `position ${row}, dimension ${column}: ${formatSigned(values[row * dimensions + column])}`,
  });
}

function similarityHeatmap(encodings, width) {
  const { similarities, count } = encodings;
  return positionHeatmap(encodings, width, {
    columns: count,
    values: similarities,
    max: 1,
    name: "cosine similarity of positions",
    describeCell: (row, column) =>
      `positions ${row} and ${column}: ${formatWeight(similarities[row * count + column])}`,
  });
}

export const positions = {
  key: "positions",
  name: "Positions",
  term: "positional encodings",
  summary: "how the model represents word order, and how similar its encodings of two positions are.",
  description:
    "Attention alone ignores word order, so each position has an encoding. Left: one row per position, one column per dimension. Right: the cosine similarity of the encodings of any two positions; below, that of the selected position to all others.",
  missing: (record) =>
    record.positions
      ? ""
      : "This record has no positional encodings: only models that add them to embeddings, or rotate queries and keys, have some.",
  draw(stage, { record }, redraw) {
    const { kind } = record.positions;
    const encodings = positionEncodings(record.positions, redraw);
    if (!encodings) {
      stage.replaceChildren(smallText("loading …"));
      return;
    }
    const { count, total, dimensions } = encodings;
    const width = stage.clientWidth > 684 ? (stage.clientWidth - 24) / 2 : stage.clientWidth;
    const encodingMap = encodingHeatmap(encodings, width);
    const similarityMap = similarityHeatmap(encodings, width);
    selected.heatmaps = [
      [encodingMap, dimensions],
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
        titledBlock(`${count} positions × ${dimensions} dimensions`, encodingMap.element),
        titledBlock(term("cosine similarity", "cosine similarity of positions"), similarityMap.element),
      ),
      selected.plot,
      signedBar(formatWeight(maxAbs(encodings.values))),
    );
    selected.heatmaps.forEach(([map]) => map.layout());
    selectPosition(encodings, selected.position, -1);
  },
  mark() {},
  table({ record }) {
    const encodings = positionEncodings(record.positions, () => {});
    if (!encodings) return emptyTable("Positional encodings are being loaded");
    const { count, similarities } = encodings;
    const offsets = OFFSETS.filter((offset) => offset < count);
    const similarity = (position, offset) =>
      position + offset < count ? formatWeight(similarities[position * count + position + offset]) : "";
    return {
      caption: "Cosine similarity of each position to later ones",
      head: ["position", ...offsets.map((offset) => `+${offset}`)],
      rows: range(count, (position) => [`${position}`, ...offsets.map((offset) => similarity(position, offset))]),
    };
  },
};
