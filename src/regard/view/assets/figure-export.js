// Saves what is drawn as an SVG file with text as text; a server draws the figure itself where it can.

import { root, svgElement } from "./dom.js";
import { current } from "./selection.js";
import { state } from "./state.js";
import { fetchFigure, isServed } from "./store.js";

const COPIED_PROPERTIES = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "opacity",
  "fill-opacity",
  "font-size",
  "font-weight",
  "text-anchor",
  "visibility",
];
const LEFT_OUT = ".visually-hidden, .tip, .content, select, input, .segments, .tool";
const MARGIN = 8;
const ASCENT = 0.78; // of a line's height, from its top to the baseline
const RELEASE_DELAY = 10000; // milliseconds until the file's data may be freed

const isTransparent = (colour) => colour === "transparent" || /, 0\)$|\/ 0\)$/.test(colour);

// A copy of a drawing with the styles that the page's style sheet gave it.
function copySvg(svg, x, y) {
  const copy = svg.cloneNode(true);
  const copies = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((original, index) => {
    const style = getComputedStyle(original);
    for (const name of COPIED_PROPERTIES) copies[index].setAttribute(name, style.getPropertyValue(name));
  });
  const { width, height } = svg.getBoundingClientRect();
  const attributes = { x, y, width, height, "font-family": getComputedStyle(document.body).fontFamily };
  Object.entries(attributes).forEach(([name, value]) => copy.setAttribute(name, value));
  return copy;
}

function copyText(node, left, top) {
  const textRange = document.createRange();
  textRange.selectNodeContents(node);
  const [bounds] = textRange.getClientRects();
  if (!bounds || bounds.width < 0.5) return "";
  const { color, fontSize, fontWeight, fontFamily } = getComputedStyle(node.parentElement);
  const attributes = {
    x: bounds.left - left,
    y: bounds.top - top + bounds.height * ASCENT,
    fill: color,
    "font-size": fontSize,
    "font-weight": fontWeight,
    "font-family": fontFamily,
  };
  return svgElement("text", attributes, node.textContent.trim());
}

function copyCanvas(canvas, box) {
  const rendering = canvas.width < box.width ? "pixelated" : "auto";
  const attributes = { href: canvas.toDataURL(), preserveAspectRatio: "none", "image-rendering": rendering };
  return svgElement("image", { ...box, ...attributes });
}

// The background and border of an element; null if it has neither.
function copyBox(style, box) {
  const { backgroundColor, borderTopWidth, borderTopColor, borderRadius } = style;
  const hasBackground = !isTransparent(backgroundColor);
  const hasBorder = parseFloat(borderTopWidth) > 0 && !isTransparent(borderTopColor);
  if (!hasBackground && !hasBorder) return null;
  return svgElement("rect", {
    ...box,
    rx: parseFloat(borderRadius) || 0,
    fill: hasBackground ? backgroundColor : "none",
    stroke: hasBorder ? borderTopColor : "none",
  });
}

// Appends an element and its descendants to a drawing: boxes, canvases, drawings, text.
function collectSvg(node, left, top, target) {
  const bounds = node.getBoundingClientRect();
  const style = getComputedStyle(node);
  const isHidden = style.visibility === "hidden" || style.display === "none";
  if (isHidden || node.matches(LEFT_OUT) || !bounds.width) return;
  const box = { x: bounds.left - left, y: bounds.top - top, width: bounds.width, height: bounds.height };
  if (node instanceof SVGSVGElement) {
    target.append(copySvg(node, box.x, box.y));
    return;
  }
  if (node instanceof HTMLCanvasElement) {
    target.append(copyCanvas(node, box));
    return;
  }
  const rectangle = copyBox(style, box);
  if (rectangle) target.append(rectangle);
  for (const child of node.childNodes) {
    if (child.nodeType === Node.ELEMENT_NODE) collectSvg(child, left, top, target);
    else if (child.textContent.trim()) target.append(copyText(child, left, top));
  }
}

function snapshotSvg(stage) {
  const bounds = stage.getBoundingClientRect();
  const width = Math.ceil(bounds.width) + 2 * MARGIN;
  const height = Math.ceil(bounds.height) + 2 * MARGIN;
  const background = svgElement("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor });
  const svg = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, background);
  collectSvg(stage, bounds.left - MARGIN, bounds.top - MARGIN, svg);
  return new XMLSerializer().serializeToString(svg);
}

// The figure drawn by the server; empty for tables and for views that Python does not draw.
async function serverFigure() {
  if (!isServed || state.table) return "";
  const fields = {
    view: state.view,
    attention: state.attention,
    layer: state.layer,
    head: state.heads[0],
    words: Number(state.unit === "word"),
    theme: root.dataset.theme,
  };
  return fetchFigure(current.record, fields).catch(() => "");
}

export async function saveFigure(stage, report) {
  const svg = (await serverFigure()) || snapshotSvg(stage);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  link.download = `${state.view}.svg`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), RELEASE_DELAY);
  report(`saved ${link.download}`);
}
