// Colour ramps: weights run from the page's background to ink, signed values from blue to orange; heads have eight hues.

import { range } from "./arrays.js";
import { div, element, root, svgElement } from "./dom.js";

export const HEAD_COLOURS = 8;
export const ramps = { weights: [], signed: [] }; // 256 CSS colours each
const packedRamps = {}; // the same as 32-bit pixels

const LIGHT_TEXT_ABOVE = 150;

export const cssVariable = (name) => getComputedStyle(root).getPropertyValue(name).trim();
export const headColour = (index) => `var(--head-${index % HEAD_COLOURS})`;

const parseRgb = (variable) => cssVariable(variable).split(/\s+/).map(Number);
const mixRgb = (from, to, share) => from.map((value, channel) => Math.round(value + (to[channel] - value) * share));

function interpolateRamp(stops) {
  return range(256, (level) => {
    const position = (level / 255) * (stops.length - 1);
    const left = Math.min(stops.length - 2, Math.floor(position));
    return mixRgb(stops[left], stops[left + 1], position - left);
  });
}

// Reads the colours of the current theme.
export function buildRamps() {
  const colours = {
    weights: interpolateRamp(["--ground", "--mid", "--ink"].map(parseRgb)),
    signed: interpolateRamp(["--cold-ink", "--cold", "--ground", "--warm", "--warm-ink"].map(parseRgb)),
  };
  for (const [name, ramp] of Object.entries(colours)) {
    ramps[name] = ramp.map((rgb) => `rgb(${rgb.join(" ")})`);
    packedRamps[name] = Uint32Array.from(ramp, ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red);
  }
}

// Levels, 0 to 255, of a weight by its square root, of a weight itself, and of a signed value (127.5 is zero).
export const rootLevel = (weight) => (weight <= 0 ? 0 : Math.min(255, Math.round(255 * Math.sqrt(weight))));
const linearLevel = (weight) => (weight <= 0 ? 0 : Math.min(255, Math.round(255 * weight)));
export const shadeLevel = (norm) => (norm === "linear" ? linearLevel : rootLevel);

export function signedLevel(max) {
  const scale = 127.5;
  return (value) => Math.max(0, Math.min(255, Math.round(scale + (scale * value) / (max || 1))));
}

const needsLightText = (level) => level > LIGHT_TEXT_ABOVE;

export function setShade(node, level, ramp = "weights") {
  const strength = ramp === "weights" ? level : Math.abs(level - 127.5) * 2;
  node.style.background = strength > 1 ? ramps[ramp][level] : "";
  node.style.color = needsLightText(strength) ? "rgb(var(--ground))" : "";
  return node;
}

// A canvas with one pixel per value, to be scaled when drawn.
export function paintPixels(values, rows, columns, level, ramp = "weights") {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = packedRamps[ramp];
  for (let index = 0; index < pixels.length; index += 1) pixels[index] = colours[level(values[index])];
  context.putImageData(image, 0, 0);
  return canvas;
}

// Gives a canvas a size in CSS pixels at the resolution of the screen; returns its drawing context.
export function resizeCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

// A legend: a ramp with labels below it; ticks are [share of the width, label].
export function scaleBar(ramp, ticks) {
  const name = `scale from ${ticks[0][1]} to ${ticks.at(-1)[1]}`;
  const bar = element("canvas", { width: 256, height: 1, class: "ramp", role: "img", "aria-label": name });
  const context = bar.getContext("2d");
  ramps[ramp].forEach((colour, level) => {
    context.fillStyle = colour;
    context.fillRect(level, 0, 1, 1);
  });
  const labels = ticks.map(([share, label]) => element("span", { style: { left: `${100 * share}%` } }, label));
  return div("scale", bar, div("ticks", ...labels));
}

export function signedBar(maxLabel, minLabel = `−${maxLabel}`) {
  const ticks = [
    [0, minLabel],
    [0.5, "0"],
    [1, maxLabel],
  ];
  return div("narrow", scaleBar("signed", ticks));
}

// Values as a line over the whole width, with `min` at the bottom and `max` at the top.
export function sparkline(values, width, height, min, max, className = "") {
  const points = Array.from(values, (value, index) => {
    const x = ((index + 0.5) / values.length) * width;
    const y = height - 5 - ((value - min) / (max - min)) * (height - 10);
    return `${x},${y}`;
  });
  return svgElement("polyline", { class: `plot ${className}`, points: points.join(" ") });
}
