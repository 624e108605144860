// Colours: ink grows with the weight from the page's own ground; signed values go blue to orange; heads have eight hues.

import { block, make, root, shape } from "./dom.js";
import { upTo } from "./numbers.js";

export const ramps = { weights: [], signed: [] }; // 256 css colours each
const packed = {};

const valueOf = (name) => getComputedStyle(root).getPropertyValue(name).trim();

export function mixColours() {
  const triple = (name) => valueOf(name).split(/\s+/).map(Number);
  const mix = (from, to, share) => from.map((value, place) => Math.round(value + (to[place] - value) * share));
  const ramp = (stops) => upTo(256, (level) => {
    const place = (level / 255) * (stops.length - 1);
    const left = Math.min(stops.length - 2, Math.floor(place));
    return mix(stops[left], stops[left + 1], place - left);
  });
  const made = {
    weights: ramp(["--ground", "--mid", "--ink"].map(triple)),
    signed: ramp(["--cold-ink", "--cold", "--ground", "--warm", "--warm-ink"].map(triple)),
  };
  for (const [name, colours] of Object.entries(made)) {
    ramps[name] = colours.map((rgb) => `rgb(${rgb.join(" ")})`);
    packed[name] = Uint32Array.from(colours, ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red);
  }
}

export const HUES = 8;
export const hue = (place) => `var(--head-${place % HUES})`;
export const colourOf = (name) => valueOf(name);

export const rootLevel = (weight) => (weight <= 0 ? 0 : Math.min(255, Math.round(255 * Math.sqrt(weight))));
export const flatLevel = (weight) => (weight <= 0 ? 0 : Math.min(255, Math.round(255 * weight)));
export const levelBy = (norm) => (norm === "linear" ? flatLevel : rootLevel);
export const signedLevel = (most) => (value) => Math.max(
  0, Math.min(255, Math.round(127.5 + (127.5 * value) / (most || 1)))
);
export const onInk = (level) => level > 150;

export function shadeIn(element, level, ramp = "weights") {
  const dark = ramp === "weights" ? level : Math.abs(level - 127.5) * 2;
  element.style.background = dark > 1 ? ramps[ramp][level] : "";
  element.style.color = onInk(dark) ? "rgb(var(--ground))" : "";
  return element;
}

// A picture of one pixel a value, for canvases to stretch.
export function pixels(values, rows, columns, level, ramp = "weights") {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, rows];
  const pen = canvas.getContext("2d");
  const picture = pen.createImageData(columns, rows);
  const [wide, colours] = [new Uint32Array(picture.data.buffer), packed[ramp]];
  for (let place = 0; place < wide.length; place += 1) wide[place] = colours[level(values[place])];
  pen.putImageData(picture, 0, 0);
  return canvas;
}

// Makes a canvas so large on the screen, as fine as the screen is, and returns its pen.
export function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return pen;
}

// The scale as a drawing: [[share of its width, label], …] below a ramp.
export function scaleBar(ramp, ticks) {
  const bar = make(
    "canvas",
    {
      width: 256, height: 1, class: "ramp", role: "img", "aria-label": `scale from ${ticks[0][1]} to ${ticks.at(-1)[1]}`
    }
  );
  const pen = bar.getContext("2d");
  ramps[ramp].forEach((colour, place) => { pen.fillStyle = colour; pen.fillRect(place, 0, 1, 1); });
  const marks = ticks.map(([share, label]) => make("span", { style: { left: `${100 * share}%` } }, label));
  return block("scale", bar, block("ticks", ...marks));
}

export const signedBar = (most, least = `−${most}`) => block("narrow", scaleBar("signed", [[0, least], [0.5, "0"], [1, most]])
);

// Values as a line across a drawing, from `low` at its foot to `most` at its top.
export function plot(values, width, height, low, most, kind = "") {
  const points = Array.from(
    values,
    (
      value, place
    ) => `${((place + 0.5) / values.length) * width},${height - 5 - ((value - low) / (most - low)) * (height - 10)}`
  );
  return shape("polyline", { class: `plot ${kind}`, points: points.join(" ") });
}

export const svgBox = (width, height, attributes = {}, ...children) =>
  shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, ...attributes }, ...children);
