// A record's weights and labels: what the drawing asks for.

// Weights are kept as bytes of 255·√w, deflated, in base64; they come back as [head][row * columns + column].
export async function unpack(block) {
  const bytes = Uint8Array.from(atob(block.data), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const roots = new Uint8Array(await new Response(stream).arrayBuffer());
  const weights = Float32Array.from(roots, (root) => (root / 255) ** 2);
  const [heads, rows, columns] = block.shape;
  return Array.from({ length: heads }, (_, head) => weights.subarray(head * rows * columns, (head + 1) * rows * columns));
}

export async function open(record) {
  for (const seen of record.attention) {
    seen.weights = await Promise.all(seen.blocks.map(unpack));
  }
  return record;
}

// Control signs that reorder or hide text are shown by their number.
export function visible(text) {
  return text
    .replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
      (sign) => "⟨" + sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "⟩");
}

// The units of a side: words of several tokens, or the tokens themselves; a text of one word is shown by its tokens.
export function units(side, words) {
  const joined = words && new Set(side.word.filter((word) => word >= 0)).size > 1;
  const groups = [];
  side.tokens.forEach((token, number) => {
    const word = side.word[number];
    if (joined && number > 0 && word >= 0 && side.word[number - 1] === word) groups.at(-1).push(number);
    else groups.push([number]);
  });
  const named = side.text.split(/\s+/).filter(Boolean);
  return groups.map((members) => {
    const token = side.tokens[members[0]];
    const label = (joined && named[side.word[members[0]]]) || token.replace(/^ /, "▁");
    return { members, label: visible(label) || "∅", special: members.every((number) => side.special[number]) };
  });
}

// What a word looks at is added up over its pieces; who looks is averaged.
export function merged(weights, width, rows, columns) {
  const table = rows.map(() => new Float32Array(columns.length));
  rows.forEach((row, y) => columns.forEach((column, x) => {
    let sum = 0;
    for (const from of row.members) for (const to of column.members) sum += weights[from * width + to];
    table[y][x] = sum / row.members.length;
  }));
  return table;
}

export function number(weight) {
  return weight >= 0.995 ? "1.00" : weight.toFixed(weight < 0.0995 ? 3 : 2).replace(/^0/, "");
}

export const KINDS = {
  "decoder.cross": ["target → source", "where the decoder looked in the source while producing each word"],
  "encoder.self": ["source → source", "where each source word looked among the source words"],
  "decoder.self": ["target → target", "where the decoder looked among the words it had written"],
  memory: ["hop → sentence", "where each hop looked among the sentences of the story", ["story", "hops"]],
  "decoder.attention": ["target → source", "where the decoder looked in the source while producing each word"],
};
