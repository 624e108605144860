// Labels and numbers: what is written beside the drawings.

import { remembered } from "./numbers.js";

// Signs that reorder or hide text are shown by their number; joiners between letters are part of how they are written.
export function visible(text) {
  return String(text)
    .replace(/(?<![\p{L}\p{M}\p{Emoji}\ufe0f])[\u200c\u200d]|[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}](?<![\u200c\u200d])/gu, (sign) =>
      sign === "\n" ? "⏎" : sign === "\t"
        ? "⇥" : `⟨${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

// The units of a side, the same list for the same question: what was made of it need not be made again.
export const units = (side, words, specials = true) => remembered(
  side, `${words} ${specials}`, () => unitsOf(side, words, specials)
);

// Words of several tokens, or the tokens themselves; a text of one word is shown by its tokens.
function unitsOf(side, words, specials) {
  const joined = words && new Set(side.word.filter((word) => word >= 0)).size > 1;
  const groups = [];
  side.tokens.forEach((_, place) => {
    const word = side.word[place];
    if (joined && place > 0 && word >= 0 && side.word[place - 1] === word) groups.at(-1).push(place);
    else groups.push([place]);
  });
  const named = side.text.split(/\s+/).filter(Boolean);
  const made = groups.map((members) => {
    const token = side.tokens[members[0]];
    const label = (joined && named[side.word[members[0]]]) || token.replace(/^ /, joined ? "" : "▁");
    const special = members.every((place) => side.special?.[place] ?? side.word[place] < 0);
    return { members, label: visible(label) || "∅", special, segment: side.segment?.[members[0]] ?? 0 };
  });
  const kept = specials ? made : made.filter((unit) => !unit.special);
  return kept.length ? kept : made;
}

// A weight as people write it: .63, .042, 1.00; never more digits than the page's code holds.
export function number(weight) {
  if (!Number.isFinite(weight)) return "–";
  if (weight > 0 && weight < 0.0005) return "<.001";
  if (weight >= 0.995) return weight < 1.005 ? "1.00" : weight.toFixed(2);
  return Math.abs(weight).toFixed(Math.abs(weight) < 0.0995 ? 3 : 2).replace(/^0/, weight < 0 ? "−" : "");
}

export const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toPrecision(3);
export const percent = (share) => `${(100 * share).toFixed(share > 0.0995 || share === 0 ? 0 : 1)} %`;
export const counted = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;

export const KINDS = {
  "decoder.cross": ["target → source", "where the decoder looked in the source while producing each word"],
  "decoder.attention": ["target → source", "where the decoder looked in the source while producing each word"],
  "encoder.self": ["text → text", "where each word looked among the words of its own text"],
  "decoder.self": ["written so far", "where the decoder looked among the words already written"],
  hop: ["hop → sentence", "where each hop looked among the sentences of the story"],
  memory: ["hop → sentence", "where each hop looked among the sentences of the story"],
};
export const kindName = (seen) => (KINDS[seen.name] || [visible(seen.name)])[0];
export const kindMeaning = ({ seen, later }) => (
  (KINDS[seen.name] || ["", "where each row looked"])[1].replace(later ? "while producing each word" : "\n", "once each word was written")
);

// The name that commands use for a head: encoder.3.self:2.
export function siteOf(seen, layer, head) {
  const [stack, ...rest] = seen.name.split(".");
  const numbered = seen.name === "decoder.attention" ? seen.name : [stack, layer, ...rest].join(".");
  return visible(`${numbered}:${head}`);
}
