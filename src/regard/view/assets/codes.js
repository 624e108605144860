// Arrays of a record: root8 (bytes of 255·√w), f16 (half precision) and sparse (the largest weights of each row).

const squares = Float32Array.from({ length: 256 }, (_, byte) => (byte * byte) / 65025);

export async function inflated(text) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const known = new WeakMap();

export function fromRoots(roots) {
  const weights = new Float32Array(roots.length);
  for (let place = 0; place < roots.length; place += 1) weights[place] = squares[roots[place]];
  known.set(weights, roots);
  return weights;
}

// The roots that weights were made of, where they were: of a long text nobody wants to draw them again.
export const rootsOf = (weights) => known.get(weights);

function fromHalves(bytes) {
  const halves = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length >> 1);
  return Float32Array.from(halves, (half) => {
    const [sign, power, rest] = [half & 0x8000 ? -1 : 1, (half >> 10) & 31, half & 1023];
    if (power === 31) return rest ? NaN : sign * Infinity;
    return sign * (power ? 2 ** (power - 15) * (1 + rest / 1024) : 2 ** -14 * (rest / 1024));
  });
}

function fromSparse(bytes, [heads, rows, columns]) {
  const wide = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const lines = heads * rows;
  let total = 0;
  for (let line = 0; line < lines; line += 1) total += wide.getUint16(2 * line, true);
  const weights = new Float32Array(lines * columns);
  let [place, value] = [2 * lines, 2 * lines + 2 * total];
  for (let line = 0; line < lines; line += 1) {
    for (let left = wide.getUint16(2 * line, true); left > 0; left -= 1, place += 2, value += 1) {
      weights[line * columns + wide.getUint16(place, true)] = squares[bytes[value]];
    }
  }
  return weights;
}

// The numbers of {shape, code, data}.
export async function decoded(block, otherwise = "f16") {
  const bytes = await inflated(block.data);
  const code = block.code || otherwise;
  if (code === "root8") return fromRoots(bytes);
  if (code === "sparse") return fromSparse(bytes, block.shape);
  return fromHalves(bytes);
}
