// Elements. Text only ever enters the page as text nodes; styles are set through properties, as the policy asks.

const SVG = "http://www.w3.org/2000/svg";

export const root = document.documentElement;
export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
export const truth = (on) => (on ? "true" : "false");

function filled(element, attributes, children) {
  if (element.tagName === "BUTTON") element.type = "button";
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export const block = (kind, ...children) => make("div", { class: kind }, ...children);

export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function button(label, press, attributes = {}) {
  return make("button", { class: "tool", onclick: press, ...attributes }, label);
}

// A few choices side by side, one of them taken: [[label, value, title], …].
export function choices(name, offered, taken, choose) {
  return make("div", { class: "segments", role: "group", "aria-label": name }, ...offered.map(([label, value, title]) =>
    make("button", { title, "aria-pressed": truth(value === taken), onclick: () => choose(value) }, label)));
}

// Many choices in a list that opens.
export function picker(name, offered, taken, choose) {
  const list = make("select", {
    class: "picker", "aria-label": name, onchange: () => choose(offered[list.selectedIndex][1])
  },
    ...offered.map(([label, value]) => make("option", { selected: value === taken }, label)));
  return list;
}

// Names with a bar each: [{label, value, share, on, press}].
export function barList(items, name) {
  return make("ol", {
    class: "barlist", "aria-label": name
  }, ...items.map(({ label, value, share, on, press, special }) => {
    const parts = [
      make("span", { class: special ? "what special" : "what", dir: "auto" }, label.slice(0, 120)),
      make("span", { class: "value" }, value),
      block("track", make("div", { class: "fill", style: { width: `${clamp(100 * share, 0, 100)}%` } })
      ),
    ];
    return make(
      "li", { class: on ? "taken" : "" }, ...(press ? [make("button", { onclick: press }, ...parts)] : parts)
    );
  }));
}

// Which way an arrow key goes, [rows, columns]; the key is taken then.
export function arrow(event) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!step || event.altKey || event.ctrlKey || event.metaKey) return null;
  event.preventDefault();
  event.stopPropagation();
  return step;
}

export function range(name, value, most, input, extra = {}) {
  return make(
    "input",
    {
      type: "range", min: 0, max: most, value, "aria-label": name,
      oninput: (event) => input(Number(event.target.value)), ...extra
    }
  );
}

// A row of things with a word before it.
export const labelled = (text, ...things) => make("label", { class: "fine" }, text, ...things);
export const row = (...things) => block("strip", ...things);
export const titled = (title, ...things) => make("div", {}, make("h3", {}, title), ...things);
export const fine = (...words) => make("p", { class: "fine" }, ...words);
export const notice = (...words) => make("p", { class: "notice", role: "note" }, ...words);

let [pens, family, large] = [null, "", 0];

// Text is measured as it will be drawn, so that no script or font is guessed at.
export function measured(text, size = 13) {
  pens ??= document.createElement("canvas").getContext("2d");
  family ||= getComputedStyle(document.body).fontFamily;
  if (large !== size) pens.font = `${large = size}px ${family}`;
  return pens.measureText(text).width;
}

// The longest beginning of a label that fits, cut between whole signs.
export function fitted(text, room, size = 13) {
  const start = text.length > 200 ? text.slice(0, 200) : text;
  if (start === text && measured(text, size) <= room) return text;
  const signs = Array.from(new Intl.Segmenter().segment(start), (part) => part.segment);
  let [low, high] = [0, signs.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (measured(`${signs.slice(0, middle).join("")}…`, size) <= room) low = middle;
    else high = middle - 1;
  }
  return `${signs.slice(0, low).join("")}…`;
}
