// Builds elements. Text enters the page as text nodes only; styles are set as properties, as the security policy demands.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

export const root = document.documentElement;
export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
export const ariaBoolean = (isOn) => (isOn ? "true" : "false");

function fill(node, attributes, children) {
  if (node.tagName === "BUTTON") node.type = "button";
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === undefined || value === null) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Attributes that begin with "on" are event listeners; those that are false, null or undefined are left out.
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

export function svgBox(width, height, attributes = {}, ...children) {
  return svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}`, ...attributes }, ...children);
}

export const div = (className, ...children) => element("div", { class: className }, ...children);
export const toolbar = (...children) => div("toolbar", ...children);
export const smallText = (...children) => element("p", { class: "note" }, ...children);
export const notice = (...children) => element("p", { class: "notice", role: "note" }, ...children);
export const fieldLabel = (text, ...children) => element("label", { class: "note" }, text, ...children);
export const titledBlock = (title, ...children) => element("div", {}, element("h3", {}, title), ...children);

// `attributes` has the title, which is the tooltip.
export function button(label, onPress, attributes = {}) {
  return element("button", { class: "tool", onclick: onPress, ...attributes }, label);
}

// Options side by side, one of them pressed; options are [label, value, title].
export function segmentedControl(name, options, selected, onSelect) {
  const segments = options.map(([label, value, title]) =>
    element(
      "button",
      { title, "aria-pressed": ariaBoolean(value === selected), onclick: () => onSelect(value) },
      label,
    ),
  );
  return element("div", { class: "segments", role: "group", "aria-label": name }, ...segments);
}

// A drop-down list; options are [label, value].
export function select(name, options, selected, onSelect, title = name) {
  const list = element(
    "select",
    { class: "select", title, "aria-label": name, onchange: () => onSelect(options[list.selectedIndex][1]) },
    ...options.map(([label, value]) => element("option", { selected: value === selected }, label)),
  );
  return list;
}

export function slider(name, value, max, onInput, title = name) {
  const oninput = (event) => onInput(Number(event.target.value));
  return element("input", { type: "range", min: 0, max, value, title, "aria-label": name, oninput });
}

// Labels with a bar each; items are {label, value, share, isSelected, onPress, title, special}.
export function barList(items, name) {
  return element("ol", { class: "bar-list", "aria-label": name }, ...items.map(barListItem));
}

function barListItem({ label, value, share, isSelected, onPress, title, special }) {
  const parts = [
    element("span", { class: special ? "bar-label special" : "bar-label", dir: "auto" }, label.slice(0, 120)),
    element("span", { class: "value" }, value),
    div("track", element("div", { class: "fill", style: { width: `${clamp(100 * share, 0, 100)}%` } })),
  ];
  const content = onPress ? [element("button", { title, onclick: onPress }, ...parts)] : parts;
  return element("li", { class: isSelected ? "selected" : "" }, ...content);
}

// Makes one of several elements the only one that Tab reaches; where another has the focus, the focus follows.
export function moveTabStop(nodes, index) {
  nodes.forEach((node, position) => {
    const tabIndex = position === index ? 0 : -1;
    if (node.tabIndex !== tabIndex) node.tabIndex = tabIndex;
  });
  if (nodes.includes(document.activeElement)) nodes[index]?.focus({ preventScroll: true });
}

const ARROW_STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

// The step of an arrow key as [rows, columns], whose event is then handled; null for other keys.
export function arrowStep(event) {
  const step = ARROW_STEPS[event.key];
  if (!step || event.altKey || event.ctrlKey || event.metaKey) return null;
  event.preventDefault();
  event.stopPropagation();
  return step;
}

const measuring = { context: null, fontFamily: "", fontSize: 0 };

// The width of text in the page's own font.
export function textWidth(text, fontSize = 13) {
  measuring.context ??= document.createElement("canvas").getContext("2d");
  measuring.fontFamily ||= getComputedStyle(document.body).fontFamily;
  if (measuring.fontSize !== fontSize) {
    measuring.fontSize = fontSize;
    measuring.context.font = `${fontSize}px ${measuring.fontFamily}`;
  }
  return measuring.context.measureText(text).width;
}

// The longest beginning of a text that fits, cut between grapheme clusters.
export function truncateText(text, maxWidth, fontSize = 13) {
  const start = text.length > 200 ? text.slice(0, 200) : text;
  if (start === text && textWidth(text, fontSize) <= maxWidth) return text;
  const graphemes = Array.from(new Intl.Segmenter().segment(start), (part) => part.segment);
  let low = 0;
  let high = graphemes.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(`${graphemes.slice(0, middle).join("")}…`, fontSize) <= maxWidth) low = middle;
    else high = middle - 1;
  }
  return `${graphemes.slice(0, low).join("")}…`;
}
