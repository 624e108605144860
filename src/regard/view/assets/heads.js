// Heads (model view): thumbnails of all heads, sorted and filtered; the selected head enlarged.

import { dot, memoized, rowSlice } from "./arrays.js";
import { paintPixels, resizeCanvas, rootLevel } from "./colours.js";
import { ariaBoolean, div, element, fieldLabel, root, select, smallText, titledBlock, toolbar } from "./dom.js";
import { availableMetrics, headMetric, listHeads, metricName, selectHead } from "./head-map.js";
import { Heatmap } from "./heatmap.js";
import { formatWeight, pluralize, siteName } from "./labels.js";
import { isSelfAttention } from "./selection.js";
import { state, update } from "./state.js";
import { thumbnails } from "./weight-cache.js";

const MAX_THUMBNAIL = 84;
const MIN_ROW_THUMBNAIL = 34; // below this, layers no longer get a row each
const DEFAULT_THUMBNAIL = 64;
const SMALL_THUMBNAIL = 56; // below this, labels are shortened
const ASCENDING = new Set(["entropy", "distance"]); // sort orders from the lowest value up

const gallery = { referenceHead: null, heatmap: null };

// Keeps the selected head as the reference for similarity, or releases it.
export function toggleReferenceHead() {
  gallery.referenceHead = gallery.referenceHead ? null : [state.layer, state.heads[0]];
  update({ sort: gallery.referenceHead ? "similarity" : "layer" });
}

const cosineSimilarity = (left, right) => dot(left, right) / (Math.sqrt(dot(left, left) * dot(right, right)) || 1);

function sortHeads(attention, thumbs) {
  const reference = thumbs?.weights(...(gallery.referenceHead || [state.layer, state.heads[0]]));
  const valueOf = ({ layer, layerIndex, head }) => {
    if (state.sort === "similarity") return reference && cosineSimilarity(reference, thumbs.weights(layer, head));
    return headMetric(attention, state.sort)?.[layerIndex][head];
  };
  const heads = listHeads(attention)
    .map((entry) => ({ ...entry, value: valueOf(entry) }))
    .filter((entry) => !state.label || entry.label === state.label);
  if (state.sort === "layer") return heads;
  const direction = ASCENDING.has(state.sort) ? 1 : -1;
  return heads.sort((left, right) => direction * ((left.value ?? 0) - (right.value ?? 0)));
}

// The thumbnails of a layer below one another, painted once per theme.
function thumbnailSheet(attention, thumbs, layer) {
  const rows = attention.heads * thumbs.rows;
  return memoized(thumbs, `${layer} ${root.dataset.theme}`, () => {
    const values = rowSlice(thumbs.values, attention.layers.indexOf(layer), rows * thumbs.columns);
    return paintPixels(values, rows, thumbs.columns, rootLevel);
  });
}

// Paints all thumbnails on one canvas: a hundred small ones take browsers far longer.
function layoutThumbnails(group, attention, thumbs, heads, size) {
  const context = resizeCanvas(group.lastChild, group.offsetWidth, group.offsetHeight);
  context.imageSmoothingEnabled = false;
  group.querySelectorAll(".picture").forEach((slot, index) => {
    const { layer, head } = heads[index];
    const sheet = thumbnailSheet(attention, thumbs, layer);
    const { rows, columns } = thumbs;
    context.drawImage(sheet, 0, head * rows, columns, rows, slot.offsetLeft, slot.offsetTop, size, size);
  });
}

function thumbnailCard({ layer, head, site, label, isBest, isSelected, value }, size) {
  const detail = value === undefined ? label : formatWeight(value);
  const caption = `${layer}·${head} ${size < SMALL_THUMBNAIL && !isBest ? "" : detail}`;
  return element(
    "button",
    {
      class: "thumb",
      title: `${site}: ${label}`,
      "aria-label": [site, label, value === undefined ? "" : detail].filter(Boolean).join(", "),
      "aria-pressed": ariaBoolean(isSelected),
      tabindex: isSelected ? 0 : -1,
      style: { width: `${size + 10}px` },
      onpointerenter: () => update({ hoveredHeads: [[layer, [head]]] }),
      onclick: (event) => selectHead(layer, head, event.shiftKey),
      ondblclick: () => update({ view: "matrix" }),
    },
    element("i", { class: "picture", style: { height: `${size}px` } }),
    element("span", {}, isBest ? element("b", { class: "best" }, "★ ") : null, caption),
  );
}

function galleryControls(attention, heads) {
  const sorts = [
    ["layer and head", "layer"],
    ...availableMetrics(attention).map((metric) => [metricName(metric), metric]),
    ["similarity to the selected head", "similarity"],
  ];
  const labels = [...new Set(listHeads(attention).map((entry) => entry.label))].filter(Boolean).sort();
  const filters = [["all patterns", ""], ...labels.map((label) => [label, label])];
  const sortControl = select(
    "sort heads by",
    sorts,
    state.sort,
    (sort) => update({ sort }),
    "order of the heads: by layer, by a statistic, or by similarity to the selected one",
  );
  const filterControl = select(
    "filter heads by pattern",
    filters,
    state.label,
    (label) => update({ label }),
    "only heads with this main pattern: what gets more than half of their attention",
  );
  const { referenceHead } = gallery;
  const reference = referenceHead ? `; similarity to ${siteName(attention, ...referenceHead)} (l releases it)` : "";
  return toolbar(
    fieldLabel("Sort by ", sortControl),
    labels.length > 1 ? fieldLabel("show ", filterControl) : "",
    smallText(`${pluralize(heads.length, "head")}${reference}`),
  );
}

// Sizes: thumbnails are in rows, one per layer, where they fit; the enlarged head then may have to go below them.
function layoutGallery(stage, attention, headCount) {
  const enlarged = headCount > 60 ? 240 : 300;
  const thumbnailIn = (width) => Math.min(MAX_THUMBNAIL, Math.floor(width / attention.heads) - 16);
  const isStacked = thumbnailIn(stage.clientWidth - enlarged - 40) <= MIN_ROW_THUMBNAIL;
  const fitted = thumbnailIn(stage.clientWidth - (isStacked ? 8 : enlarged + 40));
  const hasLayerRows = state.sort === "layer" && !state.label && fitted > MIN_ROW_THUMBNAIL;
  return {
    enlarged,
    hasLayerRows,
    isStacked: isStacked && hasLayerRows,
    thumbnail: hasLayerRows ? fitted : DEFAULT_THUMBNAIL,
  };
}

function enlargedHeatmap(scene, size) {
  return new Heatmap({
    rows: scene.rows,
    columns: scene.columns,
    values: scene.normalized,
    width: size + 10,
    height: size,
    showLabels: false,
    isSelfAttention: isSelfAttention(scene.attention),
    onPick: () => update({ view: "matrix" }),
    cellWidth: Math.min(size / Math.max(scene.columns.length, scene.rows.length), 24),
    name: `layer ${scene.layer}, head ${scene.heads[0]}, enlarged`,
  });
}

export const heads = {
  key: "heads",
  name: "Heads",
  term: "model view",
  summary: "the attention matrix of every head in every layer.",
  description:
    "Each thumbnail is the attention matrix of one head: rows are queries, columns are keys, dark cells are large weights. Sort the heads by a statistic or by similarity to the selected head (l keeps it as the reference), or filter them by pattern. A click enlarges a head, a double click opens its matrix.",
  draw(stage, scene, redraw) {
    const { attention } = scene;
    const thumbs = thumbnails(attention, redraw);
    if (!thumbs) {
      stage.replaceChildren(smallText("loading …"));
      return;
    }
    const sorted = sortHeads(attention, thumbs);
    const { enlarged, hasLayerRows, isStacked, thumbnail } = layoutGallery(stage, attention, sorted.length);
    const columnCount = hasLayerRows ? attention.heads : "auto-fill";
    const group = element(
      "div",
      {
        class: thumbnail < SMALL_THUMBNAIL ? "heads small" : "heads",
        role: "group",
        "aria-label": "heads",
        style: { gridTemplateColumns: `repeat(${columnCount}, ${thumbnail + 10}px)` },
      },
      ...sorted.map((entry) => thumbnailCard(entry, thumbnail)),
      element("canvas", { class: "picture-canvas", "aria-hidden": "true" }),
    );
    gallery.heatmap = enlargedHeatmap(scene, enlarged);
    const title = siteName(attention, scene.layer, scene.heads[0]);
    stage.replaceChildren(
      galleryControls(attention, sorted),
      div(
        isStacked ? "gallery stacked" : "gallery",
        group,
        div("enlarged", titledBlock(title, gallery.heatmap.element)),
      ),
    );
    gallery.heatmap.layout();
    layoutThumbnails(group, attention, thumbs, sorted, thumbnail);
    this.mark();
  },
  prerender: (values, axes) => gallery.heatmap?.prerender(values, axes),
  mark: () => gallery.heatmap?.mark(state.query, state.key),
  table({ attention }) {
    const metrics = availableMetrics(attention);
    const sorted = sortHeads(
      attention,
      thumbnails(attention, () => {}),
    );
    return {
      caption: "Statistics of each head",
      head: ["head", "main pattern", ...metrics.map(metricName)],
      rows: sorted.map(({ site, label, layerIndex, head }) => {
        const values = metrics.map((metric) => formatWeight(headMetric(attention, metric)[layerIndex][head]));
        return [site, label, ...values];
      }),
    };
  },
};
