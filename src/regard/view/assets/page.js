import { KINDS, merged, number, open, units, visible } from "./record.js";
import { css, grid, level, make, shades, thumbnail } from "./draw.js";

const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const live = document.getElementById("live");
const parts = {};
const state = { record: 0, attn: "", layer: 0, head: 0, row: 0, column: -1, words: true, table: false };
let palette = shades();
let view = null; // what is drawn: rows, columns, table, sizes

const record = () => data.records[state.record];
const seen = () => record().attention.find((one) => one.name === state.attn) || record().attention[0];
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const pressed = (on) => (on ? "true" : "false");

// ---- state and address -------------------------------------------------------------------------------------------

function readAddress() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const whole = (name, otherwise) => (/^\d+$/.test(fields.get(name) ?? "") ? Number(fields.get(name)) : otherwise);
  state.record = clamp(whole("record", 0), 0, data.records.length - 1);
  openBest();
  if (record().attention.some((one) => one.name === fields.get("attn"))) state.attn = fields.get("attn");
  if (seen().layers.includes(whole("layer", -1))) state.layer = whole("layer", 0);
  state.head = clamp(whole("head", state.head), 0, seen().heads - 1);
  state.row = whole("q", 0);
  if (fields.get("unit")) state.words = fields.get("unit") !== "piece";
  if (["dark", "light"].includes(fields.get("theme"))) document.documentElement.dataset.theme = fields.get("theme");
}

function writeAddress() {
  const fields = { record: state.record, attn: state.attn, layer: state.layer, head: state.head, q: state.row };
  if (!state.words) fields.unit = "piece";
  const chosen = document.documentElement.dataset.chosen;
  if (chosen) fields.theme = chosen;
  history.replaceState(null, "", `#${new URLSearchParams(fields)}`);
}

function openBest() {
  const best = record().view;
  Object.assign(state, { attn: best.attn, layer: best.layer, head: best.head, row: 0, column: -1 });
}

function show(changes) {
  const before = { ...state };
  Object.assign(state, changes);
  if (state.record !== before.record) {
    const kept = { attn: before.attn, layer: before.layer, head: before.head };
    openBest();
    if (record().attention.some((one) => one.name === kept.attn && one.heads > kept.head)) Object.assign(state, kept);
  }
  if (!seen().layers.includes(state.layer)) state.layer = seen().layers.at(-1);
  state.head = clamp(state.head, 0, seen().heads - 1);
  const still = ["record", "attn", "layer", "head", "words", "table"].every((name) => state[name] === before[name]);
  if (!still) draw();
  else mark();
  writeAddress();
}

// ---- frame -------------------------------------------------------------------------------------------------------

function frame() {
  const about = data.records[0].made || {};
  const facts = [about.model, about.when && about.when.slice(0, 10), about.version && `Regard ${about.version}`].filter(Boolean);
  parts.words = segments([["Words", true], ["Pieces", false]], (words) => show({ words, row: 0, column: -1 }));
  parts.tableTool = make("button", { class: "tool", type: "button", title: "as a table (v)", onclick: () => show({ table: !state.table }) }, "Table");
  page.append(
    make("header", {},
      make("h1", {}, data.title),
      make("p", { class: "about" }, facts.join(" · ")),
      make("div", { class: "tools" }, parts.words, parts.tableTool,
        make("button", { class: "tool", type: "button", title: "light or dark (t)", "aria-label": "light or dark", onclick: turnTheme }, "◐"),
        make("button", { class: "tool", type: "button", title: "keys (?)", "aria-label": "help", onclick: () => parts.help.showModal() }, "?"))),
    make("div", { class: "columns" },
      make("nav", { class: "list", "aria-label": "sentences" },
        make("h2", {}, `${data.records.length} sentences`), (parts.records = make("div", { class: "records" }))),
      make("div", { class: "main" },
        make("section", {}, (parts.sentences = make("div"))),
        make("section", {}, (parts.kinds = make("div", { class: "fine" })),
          (parts.stage = make("div", { class: "stage", tabindex: "0", role: "img" }))),
        make("section", {}, (parts.headsTitle = make("h2")), (parts.heads = make("div", { class: "heads" })))),
      make("aside", { class: "inspector" },
        make("section", {}, (parts.looker = make("p", { class: "looker", dir: "auto" })), (parts.lookerNote = make("p", { class: "fine" })),
          (parts.looked = make("ol", { class: "looked" }))),
        make("section", { class: "scale" }, make("h2", {}, "Scale"), (parts.ramp = make("canvas", { width: 256, height: 1 })),
          (parts.ticks = make("div", { class: "ticks" })),
          make("p", { class: "fine" }, "Raw weights, shaded by their root: nothing is drawn for zero. The dot marks each row’s highest weight. This is where a head looked, not why.")))),
    (parts.help = help()));
  data.records.forEach((one, place) => {
    parts.records.append(make("button", { type: "button", onclick: () => show({ record: place }) },
      make("span", { class: "language" }, one.texts.source.lang || ""),
      make("span", { class: "from", dir: "auto" }, visible(one.texts.source.text)),
      make("span", { class: "to", dir: "auto" }, visible(one.texts.target.text))));
  });
  for (const tick of [0, 0.05, 0.25, 0.5, 1]) {
    const sign = make("span", {}, tick === 0 ? "0" : number(tick).replace(/0+$/, "").replace(/\.$/, ""));
    sign.style.left = `${100 * Math.sqrt(tick)}%`;
    parts.ticks.append(sign);
  }
  parts.stage.addEventListener("pointermove", hover);
  parts.stage.addEventListener("pointerdown", hover);
  parts.stage.addEventListener("pointerleave", () => show({ column: -1 }));
}

function segments(choices, choose) {
  const box = make("div", { class: "segments", role: "group" });
  for (const [label, value] of choices) {
    const button = make("button", { type: "button", onclick: () => choose(value) }, label);
    button.value_ = value;
    box.append(button);
  }
  return box;
}

function press(box, value) {
  for (const button of box.children) button.setAttribute("aria-pressed", pressed(button.value_ === value));
}

function help() {
  const keys = [["← →", "previous, next word produced"], ["↑ ↓", "layer"], ["[ ]", "head"], [", .", "sentence"],
    ["k", "kind of attention"], ["w", "words or pieces"], ["v", "table"], ["b", "best head"], ["t", "light or dark"]];
  return make("dialog", { "aria-label": "keys" }, make("h2", {}, "Keys"),
    make("dl", {}, ...keys.flatMap(([key, what]) => [make("dt", {}, key), make("dd", {}, what)])),
    make("form", { method: "dialog" }, make("button", { class: "tool" }, "Close")));
}

// ---- drawing -----------------------------------------------------------------------------------------------------

function draw() {
  const one = seen();
  const [from, to] = [record().texts[one.rows], record().texts[one.cols]];
  const rows = units(from, state.words);
  const columns = units(to, state.words);
  const weights = one.weights[one.layers.indexOf(state.layer)][state.head];
  view = { rows, columns, table: merged(weights, to.tokens.length, rows, columns) };
  state.row = clamp(state.row, 0, rows.length - 1);
  press(parts.words, state.words);
  parts.tableTool.setAttribute("aria-pressed", pressed(state.table));
  [...parts.records.children].forEach((button, place) => button.setAttribute("aria-current", pressed(place === state.record)));
  parts.records.scrollLeft = parts.records.children[state.record].offsetLeft - parts.records.offsetLeft - 14;
  drawKinds();
  drawSentences();
  if (state.table) drawTable();
  else drawMatrix();
  drawHeads();
  drawScale();
  mark();
}

function drawKinds() {
  const kinds = record().attention.map((one) => [(KINDS[one.name] || [one.name])[0], one.name]);
  const box = segments(kinds, (attn) => show({ attn, row: 0, column: -1 }));
  press(box, state.attn);
  const best = isBest(state.layer, state.head) ? " · best aligning head" : "";
  parts.kinds.replaceChildren(box, make("p", { class: "fine" },
    `Layer ${state.layer + 1}, head ${state.head + 1}${best}: ${(KINDS[state.attn] || ["", "where each row looked"])[1]}`));
  box.style.marginBottom = "8px";
}

function isBest(layer, head) {
  const best = record().view;
  return best.measured && best.attn === state.attn && best.layer === layer && best.head === head;
}

function drawSentences() {
  const own = seen().rows === seen().cols;
  const [lookedAt, looking] = own ? ["seen", "looking"] : (KINDS[seen().name] || [])[2] || ["source", "target"];
  parts.lookedAt = view.columns.map((unit) => make("span", { class: unit.special ? "token special" : "token", dir: "auto" }, unit.label));
  parts.lookers = view.rows.map((unit, row) => make("button",
    { type: "button", class: unit.special ? "token special" : "token", dir: "auto", onclick: () => show({ row }) }, unit.label));
  const line = (name, side, tokens) => make("div", { class: `sentence ${side}` }, make("span", { class: "side" }, name),
    make("div", { class: "tokens" }, ...tokens));
  parts.sentences.replaceChildren(
    line(lookedAt, "source", parts.lookedAt), line(looking, "target", parts.lookers));
}

// Labels are measured as they will be drawn, so that no script or font is guessed at.
function measure(labels) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `13px ${getComputedStyle(document.body).fontFamily}`;
  return Math.max(...labels.map((unit) => pen.measureText(unit.label).width)) + 10;
}

function drawMatrix() {
  const { rows, columns, table } = view;
  const left = Math.ceil(clamp(measure(rows), 24, 150)) + 10;
  const slanted = Math.ceil(clamp(measure(columns), 20, 150));
  const top = Math.ceil(slanted * Math.sin((48 * Math.PI) / 180)) + 14;
  const lean = Math.ceil(slanted * Math.cos((48 * Math.PI) / 180));
  const room = parts.stage.clientWidth - left - lean - 4;
  const cell = Math.floor(clamp(room / columns.length, 17, 48));
  const tall = Math.floor(clamp(Math.min(cell, 480 / rows.length), 17, 38));
  Object.assign(view, { left, top, cell, tall });
  const box = make("div", { class: seen().rows === seen().cols ? "matrix own" : "matrix" });
  box.style.width = `${left + columns.length * cell + lean}px`;
  box.style.height = `${top + rows.length * tall + 2}px`;
  const canvas = make("canvas");
  canvas.style.left = `${left}px`;
  canvas.style.top = `${top}px`;
  grid(canvas, table, cell, tall, palette, getComputedStyle(document.documentElement).getPropertyValue("--dot"));
  const place = (element, x, y, width) => Object.assign(element.style, { left: `${x}px`, top: `${y}px`, width: `${width}px` });
  parts.rowLabels = rows.map((unit, y) => {
    const label = make("span", { class: unit.special ? "label row special" : "label row", dir: "auto" }, unit.label);
    place(label, 0, top + y * tall, left - 10);
    label.style.lineHeight = `${tall}px`;
    return label;
  });
  parts.columnLabels = columns.map((unit, x) => {
    const label = make("span", { class: unit.special ? "label column special" : "label column", dir: "auto" }, unit.label);
    place(label, left + (x + 0.62) * cell, top - 20, slanted);
    label.style.textAlign = "left";
    label.style.lineHeight = "16px";
    return label;
  });
  parts.across = make("div", { class: "bar across" });
  parts.down = make("div", { class: "bar down" });
  parts.tip = make("div", { class: "tip", hidden: true });
  box.append(canvas, ...parts.rowLabels, ...parts.columnLabels, parts.down, parts.across, parts.tip);
  parts.stage.replaceChildren(box);
  parts.stage.setAttribute("aria-label", `attention weights, ${rows.length} rows by ${columns.length} columns; arrow keys move, v shows a table`);
}

function drawTable() {
  const { rows, columns, table } = view;
  const head = make("tr", {}, make("th"), ...columns.map((unit) => make("th", { scope: "col", dir: "auto" }, unit.label)));
  const body = rows.map((unit, y) => make("tr", { onclick: () => show({ row: y }) },
    make("th", { scope: "row", dir: "auto" }, unit.label),
    ...Array.from(table[y], (weight) => make("td", { class: weight === Math.max(...table[y]) ? "best" : "" }, weight < 0.0005 ? "·" : number(weight)))));
  parts.tableRows = body;
  parts.stage.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

function drawHeads() {
  const one = seen();
  const [from, to] = [record().texts[one.rows].tokens.length, record().texts[one.cols].tokens.length];
  const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;
  parts.headsTitle.textContent = `${counted(one.layers.length, "layer")} × ${counted(one.heads, "head")}`;
  parts.heads.style.gridTemplateColumns = `auto repeat(${one.heads}, 86px)`;
  parts.heads.replaceChildren();
  one.layers.forEach((layer, place) => {
    parts.heads.append(make("span", { class: "layer" }, `layer ${layer + 1}`));
    for (let head = 0; head < one.heads; head += 1) {
      const canvas = make("canvas", { "aria-hidden": "true" });
      thumbnail(canvas, one.weights[place][head], from, to, palette);
      const label = one.stats.label[place][head];
      parts.heads.append(make("button", {
        class: "thumb", type: "button", "aria-pressed": pressed(layer === state.layer && head === state.head),
        "aria-label": `layer ${layer + 1} head ${head + 1}, ${label}`,
        title: `layer ${layer + 1}, head ${head + 1}: ${label}, ${one.stats.entropy[place][head].toFixed(2)} bits`,
        onclick: () => show({ layer, head }),
      }, canvas, make("span", {}, isBest(layer, head) ? make("b", { class: "best" }, "★ ") : "", `${head + 1} ${label}`)));
    }
  });
}

function drawScale() {
  const pen = parts.ramp.getContext("2d");
  palette.forEach((shade, place) => {
    pen.fillStyle = css(shade);
    pen.fillRect(place, 0, 1, 1);
  });
}

// ---- what is pointed at ------------------------------------------------------------------------------------------

function mark() {
  const { rows, columns, table } = view;
  state.row = clamp(state.row, 0, rows.length - 1);
  const row = table[state.row];
  const order = Array.from(row.keys()).sort((a, b) => row[b] - row[a]);
  parts.lookers.forEach((token, place) => token.setAttribute("aria-pressed", pressed(place === state.row)));
  parts.lookedAt.forEach((token, place) => {
    const shade = level(row[place]);
    token.style.background = shade ? css(palette[shade]) : "";
    token.style.color = shade > 140 ? "rgb(var(--ground))" : "";
  });
  if (state.table) parts.tableRows.forEach((line, place) => line.classList.toggle("on", place === state.row));
  else markMatrix(row);
  const one = seen();
  parts.looker.textContent = rows[state.row].label;
  parts.lookerNote.textContent = one.rowmeans === "produced" ? "while producing this, the head looked at" : "from here the head looked at";
  const top = order.slice(0, 6).filter((place) => row[place] >= 0.005);
  const rest = order.length - top.length;
  parts.looked.replaceChildren(...top.map((place) => {
    const fill = make("div", { class: "fill" });
    fill.style.width = `${100 * row[place]}%`;
    return make("li", {}, make("span", { class: "what", dir: "auto" }, columns[place].label),
      make("span", { class: "value" }, number(row[place])), make("div", { class: "track" }, fill));
  }));
  if (rest > 0) {
    const left = 1 - top.reduce((sum, place) => sum + row[place], 0);
    parts.looked.append(make("li", {}, make("span", { class: "fine" }, `+ ${rest} others`), make("span", { class: "value fine" }, number(Math.max(0, left)))));
  }
  live.textContent = `${rows[state.row].label} looks at ${order.slice(0, 3).map((place) => `${columns[place].label} ${number(row[place])}`).join(", ")}; layer ${state.layer + 1} head ${state.head + 1}`;
}

function markMatrix(row) {
  const { rows, columns, left, top, cell, tall } = view;
  const box = (element, x, y, width, height) =>
    Object.assign(element.style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
  box(parts.across, left - 1, top + state.row * tall - 1, columns.length * cell + 1, tall + 1);
  const column = clamp(state.column, -1, columns.length - 1);
  parts.down.hidden = parts.tip.hidden = column < 0;
  parts.rowLabels.forEach((label, place) => label.classList.toggle("on", place === state.row));
  parts.columnLabels.forEach((label, place) => label.classList.toggle("on", place === column));
  if (column < 0) return;
  box(parts.down, left + column * cell - 1, top - 1, cell + 1, rows.length * tall + 1);
  parts.tip.replaceChildren(`${rows[state.row].label} → ${columns[column].label}  `, make("b", {}, number(row[column])));
  const half = parts.tip.offsetWidth / 2;
  Object.assign(parts.tip.style, {
    left: `${clamp(left + (column + 0.5) * cell, half, Math.max(half, parts.stage.scrollWidth - half))}px`, top: `${top + state.row * tall - 5}px`,
  });
}

function hover(event) {
  if (state.table || !view.cell) return;
  const bounds = parts.stage.firstElementChild.getBoundingClientRect();
  const column = Math.floor((event.clientX - bounds.left - view.left) / view.cell);
  const row = Math.floor((event.clientY - bounds.top - view.top) / view.tall);
  if (row < 0 || row >= view.rows.length || column >= view.columns.length) return show({ column: -1 });
  show({ row, column: Math.max(-1, column) });
}

// ---- keys and theme ----------------------------------------------------------------------------------------------

function neighbour(list, value, step) {
  return list[clamp(list.indexOf(value) + step, 0, list.length - 1)];
}

const KEYS = {
  ArrowLeft: () => show({ row: Math.max(0, state.row - 1), column: -1 }),
  ArrowRight: () => show({ row: Math.min(view.rows.length - 1, state.row + 1), column: -1 }),
  ArrowUp: () => show({ layer: neighbour(seen().layers, state.layer, -1) }),
  ArrowDown: () => show({ layer: neighbour(seen().layers, state.layer, 1) }),
  "[": () => show({ head: Math.max(0, state.head - 1) }),
  "]": () => show({ head: Math.min(seen().heads - 1, state.head + 1) }),
  ",": () => show({ record: Math.max(0, state.record - 1) }),
  ".": () => show({ record: Math.min(data.records.length - 1, state.record + 1) }),
  k: () => {
    const names = record().attention.map((one) => one.name);
    show({ attn: names[(names.indexOf(state.attn) + 1) % names.length], row: 0, column: -1 });
  },
  w: () => show({ words: !state.words, row: 0, column: -1 }),
  v: () => show({ table: !state.table }),
  b: () => { const best = record().view; show({ attn: best.attn, layer: best.layer, head: best.head }); },
  t: turnTheme,
  "?": () => parts.help.showModal(),
};

function turnTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = document.documentElement.dataset.chosen = theme;
  repaint();
  writeAddress();
}

function repaint() {
  palette = shades();
  draw();
}

function followSystem() {
  const wish = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => {
    if (!document.documentElement.dataset.chosen) document.documentElement.dataset.theme = wish.matches ? "dark" : "light";
  };
  follow();
  wish.addEventListener("change", () => { follow(); repaint(); });
}

followSystem();
await Promise.all(data.records.map(open));
readAddress();
palette = shades();
frame();
draw();
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || parts.help.open || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
let waiting = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(draw);
});
