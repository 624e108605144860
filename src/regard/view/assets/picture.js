// The figure button: what is drawn becomes an SVG file, its text still text; a server draws it itself where it can.

import { root, shape } from "./dom.js";
import { opened } from "./scene.js";
import { drawnByServer, served } from "./shelf.js";
import { state } from "./state.js";

const COPIED = [
  "fill", "stroke", "stroke-width", "stroke-opacity", "opacity", "fill-opacity", "font-size", "font-weight",
  "text-anchor", "visibility"
];
const PASSED = ".spoken, .tip, .space, select, input, .segments, .tool";
const clear = (colour) => colour === "transparent" || /, 0\)$|\/ 0\)$/.test(colour);

function copyOfSvg(svg, x, y) {
  const copy = svg.cloneNode(true);
  const copies = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((original, place) => {
    const style = getComputedStyle(original);
    for (const name of COPIED) copies[place].setAttribute(name, style.getPropertyValue(name));
  });
  const { width, height } = svg.getBoundingClientRect();
  Object.entries(
    { x, y, width, height, "font-family": getComputedStyle(document.body).fontFamily }
  ).forEach(([name, value]) => copy.setAttribute(name, value));
  return copy;
}

function textOf(node, left, top) {
  const place = document.createRange();
  place.selectNodeContents(node);
  const [part] = place.getClientRects();
  if (!part || part.width < 0.5) return "";
  const { color, fontSize, fontWeight, fontFamily } = getComputedStyle(node.parentElement);
  return shape(
    "text",
    {
      x: part.left - left, y: part.top - top + part.height * 0.78, fill: color, "font-size": fontSize,
      "font-weight": fontWeight, "font-family": fontFamily
    },
    node.textContent.trim()
  );
}

// Walks over what is on the page and says it again in SVG: boxes, canvases, drawings, words.
function walked(element, left, top, into) {
  const { left: x_, top: y_, width, height } = element.getBoundingClientRect();
  const style = getComputedStyle(element);
  if (style.visibility === "hidden" || style.display === "none" || element.matches(PASSED) || !width) return;
  const [x, y] = [x_ - left, y_ - top];
  if (element instanceof SVGSVGElement) into.append(copyOfSvg(element, x, y));
  else if (element instanceof HTMLCanvasElement) into.append(
    shape(
      "image",
      {
        x, y, width, height, href: element.toDataURL(), preserveAspectRatio: "none",
        "image-rendering": element.width < width ? "pixelated" : "auto"
      }
    )
  );
  else {
    const [fill, border] = [
      style.backgroundColor, parseFloat(style.borderTopWidth) > 0 && !clear(style.borderTopColor)
    ];
    if (!clear(fill) || border) into.append(
      shape(
        "rect",
        {
          x, y, width, height, rx: parseFloat(style.borderRadius) || 0, fill: clear(fill) ? "none" : fill,
          stroke: border ? style.borderTopColor : "none"
        }
      )
    );
    for (const child of element.childNodes) {
      if (child.nodeType === Node.ELEMENT_NODE) walked(child, left, top, into);
      else if (child.textContent.trim()) into.append(textOf(child, left, top));
    }
  }
}

export function drawnHere(stage) {
  const bounds = stage.getBoundingClientRect();
  const [width, height] = [Math.ceil(bounds.width) + 16, Math.ceil(bounds.height) + 16];
  const svg = shape(
    "svg", { width, height, viewBox: `0 0 ${width} ${height}` },
    shape("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor })
  );
  walked(stage, bounds.left - 8, bounds.top - 8, svg);
  return new XMLSerializer().serializeToString(svg);
}

export async function saveFigure(stage, tell) {
  const fields = {
    view: state.view, attn: state.attn, layer: state.layer, head: state.heads[0], words: Number(state.unit === "word"),
    theme: root.dataset.theme
  };
  // views that Python does not draw, and tables, are drawn here
  const text = (
    served && !state.table && (await drawnByServer(opened.record, fields).catch(() => ""))
  ) || drawnHere(stage);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  link.download = `${state.view}.svg`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  tell(`saved ${link.download}`);
}
