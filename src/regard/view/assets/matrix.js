// A matrix of weights on a canvas: only what can be seen is drawn, its labels stay in sight, any cell can be reached.

import { rootsOf } from "./codes.js";
import { colourOf, levelBy, pixels, ramps, rootLevel, sized, svgBox } from "./colours.js";
import { arrow, block, clamp, fitted, make, measured, root, shape } from "./dom.js";
import { lineAt } from "./numbers.js";
import { change, state } from "./state.js";
import { number } from "./words.js";

const SLANT = (48 * Math.PI) / 180;
const MANY = 160; // rows or columns beyond which cells may become as small as they must

function labelRoom(labels, most) {
  const every = Math.ceil(labels.length / 300);
  const widths = labels.map((unit, place) => (place % every ? 0 : measured(unit.label.slice(0, 60))));
  return Math.ceil(clamp(Math.max(0, ...widths), 14, most));
}

// Pointing at a cell looks from its row, unless rows are pinned.
export function point(row, column) {
  change(row >= 0 && !state.pins.length ? { q: row, k: column } : { k: column });
}

export function pick(row, add) {
  if (row < 0) return;
  const others = state.pins.filter((one) => one !== row);
  const has = others.length < state.pins.length;
  if (add) change({ q: row, pins: has ? others : [...others, row] });
  else change({ q: row, pins: has && !others.length ? [] : [row] });
}

const pictures = new WeakMap();

// The picture of a table is made once for each scale and theme; where cells are less than a pixel, several are one, and
// which value they show is found once.
function pictureOf(values, rows, columns, level, ramp, several) {
  if (!pictures.has(values)) pictures.set(values, {});
  const before = pictures.get(values);
  const key = [root.dataset.theme, several];
  if (before[key]?.level === level) return before[key].picture;
  const [high, wide] = [Math.ceil(rows / several), Math.ceil(columns / several)];
  const roots = level === rootLevel && rootsOf(values); // they are their own levels
  const joined = (by) => (by > 1 ? before[[!roots, by]] : roots || values);
  if (several > 1) before[[!roots, several]] ??= joined(several / 2)
    ? pooled(joined(several / 2), Math.ceil((2 * rows) / several), Math.ceil((2 * columns) / several), 2)
    : pooled(joined(1), rows, columns, several);
  const picture = pixels(joined(several), high, wide, roots ? (root) => root : level, ramp);
  before[key] = { level, picture };
  return picture;
}

// The value that is furthest from zero of each so many by so many.
function pooled(values, rows, columns, several) {
  const wide = Math.ceil(columns / several);
  const made = new values.constructor(Math.ceil(rows / several) * wide);
  for (let row = 0; row < rows; row += 1) {
    const line = lineAt(values, row, columns);
    const furthest = lineAt(made, Math.floor(row / several), wide);
    for (let first = 0; first < several; first += 1) for (let x = first, to = 0; x < columns; x += several, to += 1) {
      const value = line[x];
      if (value * value > furthest[to] * furthest[to]) furthest[to] = value;
    }
  }
  return made;
}

// options: rows, columns (units), values, name, width, height; level, ramp, labels, cell, tall, dots, right, below, flip, own,
// sign between the names of a row and a column, say(row, column), hover(row, column), pick(row, add)
export function matrix(options) {
  const {
    rows, columns, values, width, height, level = levelBy(state.norm), ramp = "weights", flip, sign = "→", labels = true
  } = options;
  const {
    hover = point,
    say = (y, x) => `${rows[y].label.slice(0, 40)} ${sign} ${columns[x].label.slice(0, 40)}  ${number(values[y * columns.length + x])}`
  } = options;
  const left = labels ? labelRoom(rows, width < 520 ? 84 : 150) + 10 : 2;
  const wide = labels ? labelRoom(columns, 150) : 0;
  const [right, below] = [options.right ? 40 : 0, options.below ? 34 : 0];
  const room = Math.max(60, width - left - right - 2);
  const flat = wide + 6 < Math.min(options.cell || 46, room / columns.length); // labels that fit lie level
  const lean = flat ? 0 : Math.ceil(wide * Math.cos(SLANT));
  const top = !labels ? 2 : flat ? 20 : Math.ceil(wide * Math.sin(SLANT)) + 12;
  const least = columns.length > MANY ? 0 : 15;
  const start = options.cell || clamp((room - lean) / columns.length, least, 46);
  const high = columns.length > MANY && rows.length > MANY ? start : clamp(
    height / rows.length, rows.length > MANY ? 0 : 16, Math.max(16, Math.min(36, start))
  );
  const lowest = options.tall || options.cell || high;
  let [cell, tall] = [start, lowest];
  let [row, column, across, down] = [-1, -1];

  const canvas = make("canvas", { "aria-hidden": "true" });
  const over = svgBox(1, 1, { class: "over", "aria-hidden": "true" });
  const tip = make("div", { class: "tip", hidden: true });
  const cellBox = make("div", { role: "gridcell", tabindex: "0", class: "spoken", "aria-label": options.name });
  const line = make("div", { role: "row" }, cellBox);
  const glass = block("glass", canvas, over, tip);
  const space = block("space");
  const box = make("div", {
    class: options.own ? "matrix own" : "matrix", role: "grid", "aria-label": options.name,
    "aria-rowcount": rows.length, "aria-colcount": columns.length,
    style: { maxHeight: `${Math.max(height + top + below + 4, 200)}px` },
  }, glass, space, line);
  const place = (x) => (flip ? columns.length - 1 - x : x);

  function layout() {
    Object.assign(
      space.style,
      { width: `${left + columns.length * cell + lean + right}px`, height: `${top + rows.length * tall + below + 2}px` }
    );
    paint();
  }

  // What can be seen of it: the size of the window and where the first cell is in it.
  const seen = () => (
    {
      wide: Math.min(box.clientWidth, space.offsetWidth), high: Math.min(box.clientHeight, space.offsetHeight),
      x: left - box.scrollLeft, y: top - box.scrollTop
    }
  );

  const joined = (size = Math.min(cell, tall)) => 2 ** Math.max(0, Math.ceil(-Math.log2(size))); // twice as many are soon found
  // The picture of values that may be shown here soon.
  const ready = (others, { rows: { length: high_ }, columns: { length: wide_ } }) => pictureOf(
    others, high_, wide_, level, ramp, joined((start * columns.length) / wide_)
  );

  function paint() {
    const { wide: across_, high: down_, x: x0, y: y0 } = seen();
    const pen = sized(canvas, across_, down_);
    for (const one of [glass, over]) Object.assign(one.style, { width: `${across_}px`, height: `${down_}px` });
    over.setAttribute("viewBox", `0 0 ${across_} ${down_}`);
    const span = (start_, size, end, count) => [
      Math.max(0, Math.floor(-start_ / size)), Math.min(count, Math.ceil((end - start_) / size))
    ];
    const [firstX, lastX] = span(x0 - left, cell, across_ - left, columns.length);
    const [firstY, lastY] = span(y0 - top, tall, down_ - top, rows.length);
    const [fullX, fullY] = [columns.length * cell, rows.length * tall];
    pen.beginPath();
    pen.rect(left - 1, top - 1, across_, down_);
    pen.clip();
    const several = joined();
    const picture = pictureOf(values, rows.length, columns.length, level, ramp, several);
    pen.imageSmoothingEnabled = cell < 1;
    pen.save();
    if (flip) { pen.translate(2 * x0 + fullX, 0); pen.scale(-1, 1); }
    pen.drawImage(picture, x0, y0, picture.width * several * cell, picture.height * several * tall);
    pen.restore();
    if (Math.min(cell, tall) > 9) {
      pen.fillStyle = ramps[ramp][ramp === "signed" ? 128 : 0];
      for (let x = firstX; x <= lastX; x += 1) pen.fillRect(x0 + x * cell - 1, y0, 1, fullY);
      for (let y = firstY; y <= lastY; y += 1) pen.fillRect(x0, y0 + y * tall - 1, fullX, 1);
    }
    pen.strokeStyle = colourOf("--line");
    pen.strokeRect(x0 - 0.5, y0 - 0.5, fullX, fullY);
    pen.fillStyle = colourOf("--dot");
    for (const [y, x] of (Math.min(cell, tall) > 5 && options.dots) || []) {
      pen.beginPath();
      pen.arc(x0 + (place(x) + 0.5) * cell - 0.5, y0 + (y + 0.5) * tall - 0.5, Math.min(cell, tall) * 0.13, 0, 7);
      pen.fill();
    }
    pen.fillStyle = colourOf("--bar");
    for (let y = firstY; right && y < lastY; y += 1) pen.fillRect(
      x0 + fullX + 5, y0 + (y + 0.3) * tall, 32 * options.right[y] + 0.5, tall * 0.4
    );
    for (let x = firstX; below && x < lastX; x += 1) pen.fillRect(
      x0 + (x + 0.3) * cell, y0 + fullY + 4, cell * 0.4, 28 * options.below[place(x)] + 0.5
    );
    down = shape("rect", { class: "bar down", rx: 3 });
    across = shape("rect", { class: "bar", rx: 3 });
    over.replaceChildren(
      ...(labels ? [...rowNames(y0, firstY, lastY), ...columnNames(x0, firstX, lastX)] : []), down, across
    );
    outline();
  }

  const named = (unit, kind, attributes, space_) =>
    shape(
      "text", { class: `label ${kind}${unit.special ? " special" : ""}`, ...attributes }, fitted(unit.label, space_)
    );

  function* rowNames(y0, first, last) {
    const step = Math.max(1, Math.ceil(14 / tall));
    for (let y = first - (first % step); y < last; y += step) {
      const middle = y0 + (y + 0.5) * tall;
      if (middle > top - 2) yield named(
        rows[y], "row", { x: left - 8, y: middle + 4, "text-anchor": "end", "data-row": y }, left - 10
      );
    }
  }

  function* columnNames(x0, first, last) {
    const step = cell >= 15 ? 1 : Math.ceil(19 / cell);
    for (let x = first - (first % step); x < last; x += step) {
      const middle = x0 + (x + 0.5) * cell;
      const laid = flat ? { "text-anchor": "middle" } : { transform: `rotate(-48 ${middle} ${top - 7})` };
      if (middle > left - 2) yield named(
        columns[place(x)], "column", { x: middle - (flat ? 0 : 2), y: top - 6, "data-column": place(x), ...laid }, wide
      );
    }
  }

  function outline() {
    const { wide: across_, high: down_, x: x0, y: y0 } = seen();
    const [x, y] = [x0 + place(column) * cell, y0 + row * tall];
    const put = (element, shown, box_) => Object.entries(
      { visibility: shown ? "visible" : "hidden", ...box_ }
    ).forEach(([name, value]) => element.setAttribute(name, value));
    put(
      across, row >= 0 && y > top - tall,
      {
        x: left - 1, y: y - 1, width: Math.max(2, Math.min(columns.length * cell + x0, across_) - left + 1),
        height: Math.max(2, tall + 1)
      }
    );
    put(
      down, column >= 0 && x > left - cell,
      {
        x: x - 1, y: top - 1, width: Math.max(2, cell + 1),
        height: Math.max(2, Math.min(rows.length * tall + y0, down_) - top + 1)
      }
    );
    for (const label of over.querySelectorAll("text")) {
      label.classList.toggle("on", label.dataset.row === String(row) || label.dataset.column === String(column));
    }
    tip.hidden = column < 0 || row < 0 || y < 0;
    if (tip.hidden) return;
    tip.textContent = say(row, column);
    Object.assign(
      tip.style,
      {
        left: `${clamp(x + cell / 2, Math.min(90, across_ / 2), Math.max(90, across_ - 90))}px`,
        top: `${Math.max(y - 4, 24)}px`
      }
    );
  }

  // Where a pointer is: [row, column], -1 for beside.
  function at(event) {
    const bounds = box.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    const { x: x0, y: y0 } = seen();
    const inside = (value, count) => (value >= 0 && value < count ? value : -1);
    return [
      y < top ? -1 : inside(Math.floor((y - y0) / tall), rows.length),
      x < left ? -1 : place(inside(Math.floor((x - x0) / cell), columns.length)) % columns.length
    ];
  }

  function zoom(by, event) {
    const [before, bounds] = [[cell, tall], box.getBoundingClientRect()];
    const [x, y] = event ? [
      event.clientX - bounds.left - left, event.clientY - bounds.top - top
    ] : [bounds.width / 2 - left, bounds.height / 2 - top];
    const [oldX, oldY] = [box.scrollLeft + x, box.scrollTop + y];
    const grow = (size, from) => clamp(size * by, from, Math.max(46, from));
    [cell, tall] = [grow(cell, start), grow(tall, lowest)];
    layout();
    box.scrollTo((oldX * cell) / before[0] - x, (oldY * tall) / before[1] - y);
    paint();
  }

  box.addEventListener("pointermove", (event) => hover(...at(event)));
  box.addEventListener("pointerleave", () => hover(-1, -1));
  box.addEventListener(
    "click", (event) => (options.pick || pick)(options.turned ? at(event)[1] : at(event)[0], event.shiftKey)
  );
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, event);
  }, { passive: false });
  let frame = 0;
  box.addEventListener("scroll", () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(paint);
  });
  cellBox.addEventListener("keydown", (event) => {
    const step = arrow(event);
    if (!step) return;
    hover(clamp(row + step[0], 0, rows.length - 1), clamp(column + (flip ? -step[1] : step[1]), 0, columns.length - 1));
    const { wide: across_, high: down_, x: x0, y: y0 } = seen();
    const [x, y] = [x0 + place(column) * cell, y0 + row * tall];
    if (x < left || x + cell > across_) box.scrollLeft += x - across_ / 2;
    if (y < top || y + tall > down_) box.scrollTop += y - down_ / 2;
  });

  function mark(toRow, toColumn) {
    [row, column] = [toRow, toColumn];
    outline();
    line.setAttribute("aria-rowindex", row + 1);
    cellBox.setAttribute("aria-colindex", column + 1);
    cellBox.setAttribute("aria-label", row < 0 ? options.name : column < 0 ? rows[row].label : say(row, column));
  }

  return { element: box, layout, mark, ready, zoom };
}
