// Labels of tokens, heads and attention, and numbers as text.

import { memoized } from "./arrays.js";

const UNSAFE = /(?<![\p{L}\p{M}\p{Emoji}\ufe0f])[\u200c\u200d]|[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}](?<![\u200c\u200d])/gu;

// Shows characters that reorder or hide text by their code; joiners between letters belong to the script and stay.
export function escapeInvisible(text) {
  return String(text).replace(UNSAFE, (character) => {
    if (character === "\n") return "⏎";
    if (character === "\t") return "⇥";
    return `⟨${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

// Words or tokens of a text as {members, label, special, tokenType}: the same array for the same arguments, so that
// whatever is computed from it can be cached with it.
export function textUnits(text, byWord, specials = true) {
  return memoized(text, `${byWord} ${specials}`, () => buildUnits(text, byWord, specials));
}

// A text of a single word is shown by its tokens.
function buildUnits(text, byWord, specials) {
  const mergesTokens = byWord && new Set(text.word_ids.filter((word) => word >= 0)).size > 1;
  const words = text.text.split(/\s+/).filter(Boolean);
  const units = groupTokens(text, mergesTokens).map((members) => {
    const first = members[0];
    const word = mergesTokens && words[text.word_ids[first]];
    const label = word || text.tokens[first].replace(/^ /, mergesTokens ? "" : "▁");
    return {
      members,
      label: escapeInvisible(label) || "∅",
      special: members.every((token) => text.special?.[token] ?? text.word_ids[token] < 0),
      tokenType: text.token_types?.[first] ?? 0,
    };
  });
  const shown = specials ? units : units.filter((unit) => !unit.special);
  return shown.length ? shown : units;
}

// Indices of tokens, one list per unit.
function groupTokens(text, mergesTokens) {
  const groups = [];
  text.tokens.forEach((_, token) => {
    const word = text.word_ids[token];
    const continuesWord = token > 0 && word >= 0 && text.word_ids[token - 1] === word;
    if (mergesTokens && continuesWord) groups.at(-1).push(token);
    else groups.push([token]);
  });
  return groups;
}

// A weight as .63, .042 or 1.00, with no more digits than the encoded weights have.
export function formatWeight(weight) {
  if (!Number.isFinite(weight)) return "–";
  if (weight > 0 && weight < 0.0005) return "<.001";
  if (weight >= 0.995) return weight < 1.005 ? "1.00" : weight.toFixed(2);
  const digits = Math.abs(weight) < 0.0995 ? 3 : 2;
  return Math.abs(weight)
    .toFixed(digits)
    .replace(/^0/, weight < 0 ? "−" : "");
}

export const formatSigned = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toPrecision(3);
export const formatPercent = (share) => `${(100 * share).toFixed(share > 0.0995 || share === 0 ? 0 : 1)} %`;
export const pluralize = (count, noun, plural = `${noun}s`) =>
  `${count.toLocaleString("en")} ${count === 1 ? noun : plural}`;

const CROSS = ["target → source", "cross-attention: from each target word, while it is generated, to the source"];
const HOPS = ["hop → sentence", "attention of each hop to the sentences of the story"];
const ATTENTION_KINDS = {
  "decoder.cross": CROSS,
  "decoder.attention": CROSS,
  "encoder.self": ["text → text", "self-attention of the text"],
  "decoder.self": ["target → target", "self-attention of the target to the tokens generated before"],
  hop: HOPS,
  memory: HOPS,
};

export const attentionName = ({ name }) => ATTENTION_KINDS[name]?.[0] ?? escapeInvisible(name);

export function attentionMeaning({ attention, shift }) {
  const meaning = ATTENTION_KINDS[attention.name]?.[1] ?? "attention of each row to the columns";
  return shift ? meaning.replace("while it is generated", "after it is generated") : meaning;
}

// The name of a head on the command line: encoder.3.self:2.
export function siteName({ name }, layer, head) {
  const [stack, ...rest] = name.split(".");
  const layerSite = name === "decoder.attention" ? name : [stack, layer, ...rest].join(".");
  return escapeInvisible(`${layerSite}:${head}`);
}
