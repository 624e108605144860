// A matrix of weights on a canvas. Only the visible part is painted; labels stay in view; the keyboard reaches any cell.

import { poolSize, renderBitmap } from "./bitmap.js";
import { cssVariable, ramps, resizeCanvas, shadeLevel } from "./colours.js";
import { arrowStep, clamp, div, element, svgBox, svgElement, textWidth, truncateText } from "./dom.js";
import { formatWeight } from "./labels.js";
import { state, update } from "./state.js";

const SLANT_DEGREES = 48; // of column labels that are wider than their cells
const SLANT = (SLANT_DEGREES * Math.PI) / 180;
const MANY = 160; // rows or columns beyond which cells may become arbitrarily small
const MAX_CELL = 46;
const MAX_LABEL = 150;
const MEASURED_LABELS = 300; // labels whose width is measured, at most
const LABEL_HEIGHT = 14;
const ROW_BAR_LENGTH = 32;
const COLUMN_BAR_LENGTH = 28;

// ---- selection by pointer ------------------------------------------------------------------------------------------

// Pointing at a cell selects its row, unless rows are pinned.
export function hoverCell(row, column) {
  update(row >= 0 && !state.pins.length ? { query: row, key: column } : { key: column });
}

// Pins a row or unpins it; `shouldAdd` keeps the other pins.
export function selectRow(row, shouldAdd) {
  if (row < 0) return;
  const others = state.pins.filter((pin) => pin !== row);
  const isPinned = others.length < state.pins.length;
  if (shouldAdd) update({ query: row, pins: isPinned ? others : [...others, row] });
  else update({ query: row, pins: isPinned && !others.length ? [] : [row] });
}

// ---- layout --------------------------------------------------------------------------------------------------------

function labelWidth(units, maxWidth) {
  const every = Math.ceil(units.length / MEASURED_LABELS);
  const widths = units.map((unit, index) => (index % every ? 0 : textWidth(unit.label.slice(0, 60))));
  return Math.ceil(clamp(Math.max(0, ...widths), 14, maxWidth));
}

// Margins around the cells, and the size of a cell before any zooming, in pixels.
function measureLayout({ rows, columns, width, height, showLabels, cellWidth, cellHeight, rowBars, columnBars }) {
  const left = showLabels ? labelWidth(rows, width < 520 ? 84 : MAX_LABEL) + 10 : 2;
  const right = rowBars ? 40 : 0;
  const below = columnBars ? 34 : 0;
  const columnLabelWidth = showLabels ? labelWidth(columns, MAX_LABEL) : 0;
  const available = Math.max(60, width - left - right - 2);
  const isLevel = columnLabelWidth + 6 < Math.min(cellWidth || MAX_CELL, available / columns.length);
  const overhang = isLevel ? 0 : Math.ceil(columnLabelWidth * Math.cos(SLANT));
  const slantedTop = Math.ceil(columnLabelWidth * Math.sin(SLANT)) + 12;
  const labelTop = isLevel ? 20 : slantedTop;
  const hasManyRows = rows.length > MANY;
  const hasManyColumns = columns.length > MANY;
  const fittedWidth = cellWidth || clamp((available - overhang) / columns.length, hasManyColumns ? 0 : 15, MAX_CELL);
  const maxHeight = Math.max(16, Math.min(36, fittedWidth));
  const fittedHeight =
    hasManyColumns && hasManyRows ? fittedWidth : clamp(height / rows.length, hasManyRows ? 0 : 16, maxHeight);
  return {
    left,
    right,
    below,
    top: showLabels ? labelTop : 2,
    columnLabelWidth,
    hasLevelLabels: isLevel,
    overhang, // of slanted labels, to the right
    cellWidth: fittedWidth,
    cellHeight: cellHeight || cellWidth || fittedHeight,
  };
}

const setAttributes = (node, attributes) =>
  Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));

const labelElement = (unit, className, attributes, maxWidth) =>
  svgElement(
    "text",
    { class: `label ${className}${unit.special ? " special" : ""}`, ...attributes },
    truncateText(unit.label, maxWidth),
  );

// Options:
//   rows, columns     units
//   values            weights, row by row
//   name              for screen readers
//   width, height     of the space in pixels
//   level, ramp       how values become colours
//   showLabels        of rows and columns
//   cellWidth, cellHeight  fixed sizes
//   dots              [row, column] of cells with a dot
//   rowBars, columnBars    shares shown as bars on the right and below
//   isMirrored        columns run from right to left
//   isSelfAttention   rows and columns are the same text
//   isTransposed      rows are keys: a click selects the column
//   arrow             between the names of a row and a column
//   describeCell(row, column), onHover(row, column), onPick(row, shouldAdd)
export class Heatmap {
  constructor(options) {
    this.options = { ramp: "weights", arrow: "→", showLabels: true, onHover: hoverCell, onPick: selectRow, ...options };
    this.level = options.level ?? shadeLevel(state.norm);
    this.layoutSizes = measureLayout(this.options);
    this.cellWidth = this.layoutSizes.cellWidth;
    this.cellHeight = this.layoutSizes.cellHeight;
    this.row = -1;
    this.column = -1;
    this.buildElements();
    this.listen();
  }

  buildElements() {
    const { rows, columns, name, height, isSelfAttention } = this.options;
    const { top, below } = this.layoutSizes;
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.overlay = svgBox(1, 1, { class: "overlay", "aria-hidden": "true" });
    this.rowOutline = svgElement("rect", { class: "bar", rx: 3 });
    this.columnOutline = svgElement("rect", { class: "bar down", rx: 3 });
    this.tooltip = element("div", { class: "tip", hidden: true });
    this.focusCell = element("div", { role: "gridcell", tabindex: "0", class: "visually-hidden", "aria-label": name });
    this.focusRow = element("div", { role: "row" }, this.focusCell);
    this.viewportBox = div("viewport", this.canvas, this.overlay, this.tooltip);
    this.contentBox = div("content"); // as large as the whole matrix, so that the element can be scrolled
    this.element = element(
      "div",
      {
        class: isSelfAttention ? "heatmap self" : "heatmap",
        role: "grid",
        "aria-label": name,
        "aria-rowcount": rows.length,
        "aria-colcount": columns.length,
        style: { maxHeight: `${Math.max(height + top + below + 4, 200)}px` },
      },
      this.viewportBox,
      this.contentBox,
      this.focusRow,
    );
  }

  // Where a column is drawn.
  displayColumn(column) {
    return this.options.isMirrored ? this.options.columns.length - 1 - column : column;
  }

  describe(row, column) {
    const { rows, columns, values, arrow, describeCell } = this.options;
    if (describeCell) return describeCell(row, column);
    const weight = formatWeight(values[row * columns.length + column]);
    return `${rows[row].label.slice(0, 40)} ${arrow} ${columns[column].label.slice(0, 40)}  ${weight}`;
  }

  layout() {
    const { rows, columns } = this.options;
    const { left, right, top, below, overhang } = this.layoutSizes;
    Object.assign(this.contentBox.style, {
      width: `${left + columns.length * this.cellWidth + overhang + right}px`,
      height: `${top + rows.length * this.cellHeight + below + 2}px`,
    });
    this.paint();
  }

  // The size of the visible part, and the position of the first cell in it.
  viewport() {
    const { element: box, contentBox, layoutSizes } = this;
    return {
      width: Math.min(box.clientWidth, contentBox.offsetWidth),
      height: Math.min(box.clientHeight, contentBox.offsetHeight),
      x: layoutSizes.left - box.scrollLeft,
      y: layoutSizes.top - box.scrollTop,
    };
  }

  // The corner of the selected cell in the visible part.
  selectedCorner({ x, y }) {
    return [x + this.displayColumn(this.column) * this.cellWidth, y + this.row * this.cellHeight];
  }

  zoom(factor, event) {
    const { left, top, cellWidth: minWidth, cellHeight: minHeight } = this.layoutSizes;
    const { element: box, cellWidth: oldWidth, cellHeight: oldHeight } = this;
    const bounds = box.getBoundingClientRect();
    const x = (event ? event.clientX - bounds.left : bounds.width / 2) - left;
    const y = (event ? event.clientY - bounds.top : bounds.height / 2) - top;
    const contentX = box.scrollLeft + x;
    const contentY = box.scrollTop + y;
    const scale = (size, minSize) => clamp(size * factor, minSize, Math.max(MAX_CELL, minSize));
    this.cellWidth = scale(oldWidth, minWidth);
    this.cellHeight = scale(oldHeight, minHeight);
    this.layout();
    box.scrollTo((contentX * this.cellWidth) / oldWidth - x, (contentY * this.cellHeight) / oldHeight - y);
    this.paint();
  }

  // ---- paint -------------------------------------------------------------------------------------------------------

  paint() {
    const { rows, columns, showLabels } = this.options;
    const { left, top } = this.layoutSizes;
    const viewport = this.viewport();
    const { width, height, x, y } = viewport;
    const context = resizeCanvas(this.canvas, width, height);
    for (const box of [this.viewportBox, this.overlay]) {
      Object.assign(box.style, { width: `${width}px`, height: `${height}px` });
    }
    this.overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const area = {
      ...viewport,
      cellsWidth: columns.length * this.cellWidth,
      cellsHeight: rows.length * this.cellHeight,
      firstColumn: Math.max(0, Math.floor((left - x) / this.cellWidth)),
      lastColumn: Math.min(columns.length, Math.ceil((width - x) / this.cellWidth)),
      firstRow: Math.max(0, Math.floor((top - y) / this.cellHeight)),
      lastRow: Math.min(rows.length, Math.ceil((height - y) / this.cellHeight)),
    };
    context.beginPath();
    context.rect(left - 1, top - 1, width, height);
    context.clip();
    this.paintCells(context, area);
    this.paintGrid(context, area);
    this.paintDots(context, area);
    this.paintBars(context, area);
    const labels = showLabels ? [...this.rowLabels(area), ...this.columnLabels(area)] : [];
    this.overlay.replaceChildren(...labels, this.columnOutline, this.rowOutline);
    this.paintSelection();
  }

  // Renders the bitmap of other values that may be shown here next.
  prerender(values, { rows, columns }) {
    const cellWidth = (this.layoutSizes.cellWidth * this.options.columns.length) / columns.length;
    renderBitmap(values, rows.length, columns.length, this.level, this.options.ramp, poolSize(cellWidth));
  }

  paintCells(context, { x, y, cellsWidth }) {
    const { rows, columns, values, ramp, isMirrored } = this.options;
    const pool = poolSize(Math.min(this.cellWidth, this.cellHeight));
    const bitmap = renderBitmap(values, rows.length, columns.length, this.level, ramp, pool);
    context.imageSmoothingEnabled = this.cellWidth < 1;
    context.save();
    if (isMirrored) {
      context.translate(2 * x + cellsWidth, 0);
      context.scale(-1, 1);
    }
    context.drawImage(bitmap, x, y, bitmap.width * pool * this.cellWidth, bitmap.height * pool * this.cellHeight);
    context.restore();
  }

  // Gaps between large cells, and the frame.
  paintGrid(context, { x, y, cellsWidth, cellsHeight, firstColumn, lastColumn, firstRow, lastRow }) {
    const { ramp } = this.options;
    if (Math.min(this.cellWidth, this.cellHeight) > 9) {
      context.fillStyle = ramps[ramp][ramp === "signed" ? 128 : 0];
      for (let column = firstColumn; column <= lastColumn; column += 1) {
        context.fillRect(x + column * this.cellWidth - 1, y, 1, cellsHeight);
      }
      for (let row = firstRow; row <= lastRow; row += 1) {
        context.fillRect(x, y + row * this.cellHeight - 1, cellsWidth, 1);
      }
    }
    context.strokeStyle = cssVariable("--line");
    context.strokeRect(x - 0.5, y - 0.5, cellsWidth, cellsHeight);
  }

  paintDots(context, { x, y }) {
    const cellSize = Math.min(this.cellWidth, this.cellHeight);
    if (cellSize <= 5 || !this.options.dots) return;
    context.fillStyle = cssVariable("--dot");
    for (const [row, column] of this.options.dots) {
      const centreX = x + (this.displayColumn(column) + 0.5) * this.cellWidth - 0.5;
      const centreY = y + (row + 0.5) * this.cellHeight - 0.5;
      context.beginPath();
      context.arc(centreX, centreY, cellSize * 0.13, 0, 7);
      context.fill();
    }
  }

  paintBars(context, { x, y, cellsWidth, cellsHeight, firstColumn, lastColumn, firstRow, lastRow }) {
    const { rowBars, columnBars } = this.options;
    const { cellWidth, cellHeight } = this;
    context.fillStyle = cssVariable("--bar");
    for (let row = firstRow; rowBars && row < lastRow; row += 1) {
      const length = ROW_BAR_LENGTH * rowBars[row] + 0.5;
      context.fillRect(x + cellsWidth + 5, y + (row + 0.3) * cellHeight, length, cellHeight * 0.4);
    }
    for (let column = firstColumn; columnBars && column < lastColumn; column += 1) {
      const length = COLUMN_BAR_LENGTH * columnBars[this.displayColumn(column)] + 0.5;
      context.fillRect(x + (column + 0.3) * cellWidth, y + cellsHeight + 4, cellWidth * 0.4, length);
    }
  }

  // As many labels as fit below one another.
  *rowLabels({ y, firstRow, lastRow }) {
    const { rows } = this.options;
    const { left, top } = this.layoutSizes;
    const step = Math.max(1, Math.ceil(LABEL_HEIGHT / this.cellHeight));
    for (let row = firstRow - (firstRow % step); row < lastRow; row += step) {
      const middle = y + (row + 0.5) * this.cellHeight;
      const attributes = { x: left - 8, y: middle + 4, "text-anchor": "end", "data-row": row };
      if (middle > top - 2) yield labelElement(rows[row], "row", attributes, left - 10);
    }
  }

  *columnLabels({ x, firstColumn, lastColumn }) {
    const { columns } = this.options;
    const { left, top, hasLevelLabels, columnLabelWidth } = this.layoutSizes;
    const step = this.cellWidth >= 15 ? 1 : Math.ceil(19 / this.cellWidth);
    for (let position = firstColumn - (firstColumn % step); position < lastColumn; position += step) {
      const column = this.displayColumn(position);
      const middle = x + (position + 0.5) * this.cellWidth;
      const placement = hasLevelLabels
        ? { x: middle, y: top - 6, "data-column": column, "text-anchor": "middle" }
        : {
            x: middle - 2,
            y: top - 6,
            "data-column": column,
            transform: `rotate(-${SLANT_DEGREES} ${middle} ${top - 7})`,
          };
      if (middle > left - 2) yield labelElement(columns[column], "column", placement, columnLabelWidth);
    }
  }

  // Outlines of the selected row and column, their labels, the tooltip.
  paintSelection() {
    const { row, column, cellWidth, cellHeight } = this;
    const { rows, columns } = this.options;
    const { left, top } = this.layoutSizes;
    const viewport = this.viewport();
    const [x, y] = this.selectedCorner(viewport);
    setAttributes(this.rowOutline, {
      visibility: row >= 0 && y > top - cellHeight ? "visible" : "hidden",
      x: left - 1,
      y: y - 1,
      width: Math.max(2, Math.min(columns.length * cellWidth + viewport.x, viewport.width) - left + 1),
      height: Math.max(2, cellHeight + 1),
    });
    setAttributes(this.columnOutline, {
      visibility: column >= 0 && x > left - cellWidth ? "visible" : "hidden",
      x: x - 1,
      y: top - 1,
      width: Math.max(2, cellWidth + 1),
      height: Math.max(2, Math.min(rows.length * cellHeight + viewport.y, viewport.height) - top + 1),
    });
    for (const label of this.overlay.querySelectorAll("text")) {
      const { row: labelRow, column: labelColumn } = label.dataset;
      label.classList.toggle("on", labelRow === String(row) || labelColumn === String(column));
    }
    this.paintTooltip(x, y, viewport.width);
  }

  paintTooltip(x, y, viewportWidth) {
    this.tooltip.hidden = this.column < 0 || this.row < 0 || y < 0;
    if (this.tooltip.hidden) return;
    this.tooltip.textContent = this.describe(this.row, this.column);
    const centre = clamp(x + this.cellWidth / 2, Math.min(90, viewportWidth / 2), Math.max(90, viewportWidth - 90));
    Object.assign(this.tooltip.style, { left: `${centre}px`, top: `${Math.max(y - 4, 24)}px` });
  }

  // Selects a cell; -1 for no row or no column.
  mark(row, column) {
    const { name, rows } = this.options;
    this.row = row;
    this.column = column;
    this.paintSelection();
    this.focusRow.setAttribute("aria-rowindex", row + 1);
    this.focusCell.setAttribute("aria-colindex", column + 1);
    const cellName = () => (column < 0 ? rows[row].label : this.describe(row, column));
    this.focusCell.setAttribute("aria-label", row < 0 ? name : cellName());
  }

  // ---- events ------------------------------------------------------------------------------------------------------

  listen() {
    const { onHover, onPick, isTransposed } = this.options;
    const box = this.element;
    box.addEventListener("pointermove", (event) => onHover(...this.cellAt(event)));
    box.addEventListener("pointerleave", () => onHover(-1, -1));
    box.addEventListener("click", (event) => {
      const [row, column] = this.cellAt(event);
      onPick(isTransposed ? column : row, event.shiftKey);
    });
    box.addEventListener("wheel", (event) => this.zoomByWheel(event), { passive: false });
    let frame = 0;
    box.addEventListener("scroll", () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => this.paint());
    });
    this.focusCell.addEventListener("keydown", (event) => this.moveByKey(event));
  }

  // The cell under the pointer as [row, column], -1 where it is outside.
  cellAt(event) {
    const { rows, columns } = this.options;
    const { left, top } = this.layoutSizes;
    const bounds = this.element.getBoundingClientRect();
    const x = event.clientX - bounds.left;
    const y = event.clientY - bounds.top;
    const { x: originX, y: originY } = this.viewport();
    const insideOrNone = (index, count) => (index >= 0 && index < count ? index : -1);
    const row = insideOrNone(Math.floor((y - originY) / this.cellHeight), rows.length);
    const position = insideOrNone(Math.floor((x - originX) / this.cellWidth), columns.length);
    return [y < top ? -1 : row, x < left ? -1 : this.displayColumn(position) % columns.length];
  }

  zoomByWheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? 1.25 : 0.8, event);
  }

  moveByKey(event) {
    const step = arrowStep(event);
    if (!step) return;
    const { rows, columns, isMirrored, onHover } = this.options;
    const { left, top } = this.layoutSizes;
    const [rowStep, columnStep] = step;
    onHover(
      clamp(this.row + rowStep, 0, rows.length - 1),
      clamp(this.column + (isMirrored ? -columnStep : columnStep), 0, columns.length - 1),
    );
    const viewport = this.viewport();
    const [x, y] = this.selectedCorner(viewport);
    if (x < left || x + this.cellWidth > viewport.width) this.element.scrollLeft += x - viewport.width / 2;
    if (y < top || y + this.cellHeight > viewport.height) this.element.scrollTop += y - viewport.height / 2;
  }
}
