// Decodes the arrays of a record: root8 (bytes of 255·√w), f16 (half precision), sparse (the largest weights per row).

const SQUARES = Float32Array.from({ length: 256 }, (_, byte) => (byte * byte) / 65025);
const MIN_POWER = 2 ** -14; // the exponent of subnormal half-precision numbers

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const root8Bytes = new WeakMap();

export function decodeRoot8(bytes) {
  const weights = new Float32Array(bytes.length);
  for (let index = 0; index < bytes.length; index += 1) weights[index] = SQUARES[bytes[index]];
  root8Bytes.set(weights, bytes);
  return weights;
}

// The bytes that weights were decoded from, if they were: they serve as shade levels without taking roots again.
export const root8Of = (weights) => root8Bytes.get(weights);

function decodeF16(bytes) {
  const bits = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length >> 1);
  return Float32Array.from(bits, (half) => {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >> 10) & 31;
    const fraction = half & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : MIN_POWER * (fraction / 1024));
  });
}

// Layout: the number of entries of each row, then the columns of all entries (16 bits each), then their root8 bytes.
function decodeSparse(bytes, [heads, rows, columns]) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const rowCount = heads * rows;
  let entryCount = 0;
  for (let row = 0; row < rowCount; row += 1) entryCount += view.getUint16(2 * row, true);
  const weights = new Float32Array(rowCount * columns);
  let columnOffset = 2 * rowCount;
  let valueOffset = columnOffset + 2 * entryCount;
  for (let row = 0; row < rowCount; row += 1) {
    for (let left = view.getUint16(2 * row, true); left > 0; left -= 1) {
      weights[row * columns + view.getUint16(columnOffset, true)] = SQUARES[bytes[valueOffset]];
      columnOffset += 2;
      valueOffset += 1;
    }
  }
  return weights;
}

// The numbers of a block {shape, codec, data}.
export async function decodeBlock(block, defaultCodec = "f16") {
  const bytes = await inflate(block.data);
  const codec = block.codec || defaultCodec;
  if (codec === "root8") return decodeRoot8(bytes);
  if (codec === "sparse") return decodeSparse(bytes, block.shape);
  return decodeF16(bytes);
}
