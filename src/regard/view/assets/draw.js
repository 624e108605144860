// Elements and canvases. Text only ever enters the page as text nodes.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function triple(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
}

// Zero is the page's own ground; ink grows with the root of the weight, lightness falls (or rises, in the dark) steadily.
export function shades() {
  const [ground, mid, ink] = ["--ground", "--mid", "--ink"].map(triple);
  const mix = (from, to, share) => from.map((value, place) => Math.round(value + (to[place] - value) * share));
  return Array.from({ length: 256 }, (_, level) => {
    const share = level / 255;
    return share < 0.5 ? mix(ground, mid, share * 2) : mix(mid, ink, share * 2 - 1);
  });
}

export const level = (weight) => Math.min(255, Math.round(255 * Math.sqrt(Math.max(0, weight))));
export const css = (rgb) => `rgb(${rgb.join(" ")})`;

export function grid(canvas, table, cellWidth, cellHeight, palette, marks) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [table[0].length * cellWidth, table.length * cellHeight];
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const gap = Math.min(cellWidth, cellHeight) > 10 ? 1 : 0;
  table.forEach((row, y) => {
    let best = 0;
    row.forEach((weight, x) => {
      if (weight > row[best]) best = x;
      const shade = level(weight);
      if (shade === 0) return;
      pen.fillStyle = css(palette[shade]);
      pen.fillRect(x * cellWidth, y * cellHeight, cellWidth - gap, cellHeight - gap);
    });
    if (marks && row[best] > 0.1) {
      pen.beginPath();
      pen.arc((best + 0.5) * cellWidth - gap / 2, (y + 0.5) * cellHeight - gap / 2, Math.min(cellWidth, cellHeight) * 0.13, 0, 7);
      pen.fillStyle = marks;
      pen.fill();
    }
  });
}

export function thumbnail(canvas, weights, rows, columns, palette) {
  canvas.width = columns;
  canvas.height = rows;
  canvas.style.imageRendering = "pixelated";
  const pen = canvas.getContext("2d");
  const picture = pen.createImageData(columns, rows);
  for (let place = 0; place < rows * columns; place += 1) {
    picture.data.set([...palette[level(weights[place])], 255], place * 4);
  }
  pen.putImageData(picture, 0, 0);
}
