// Technical terms with a plain explanation: tooltips of words and controls, and the glossary of the help.

import { element } from "./dom.js";

export const TERMS = {
  "attention weights": "How much a query takes from each key. The weights of a query are at least 0 and sum to 1.",
  query: "Vector of the token that attends; it is compared with every key.",
  key: "Vector of a token that can be attended to; it is compared with the query.",
  value: "Vector that a token contributes to the output, multiplied by its attention weight.",
  score: "Query compared with a key, before it becomes a weight; usually their dot product divided by √d_k.",
  softmax: "Turns scores into positive weights that sum to 1: exponentials divided by their sum.",
  layer: "One of the stacked steps of a model; each attends to the output of the one below.",
  head: "One of several attentions that a layer computes in parallel, with its own queries, keys and values.",
  "alignment head": "The head whose attention agrees best with word alignments.",
  "self-attention": "Attention of a text to itself.",
  "cross-attention": "Attention of the generated text to the source.",
  hop: "One step of attention of a memory network; its output becomes the query of the next.",
  subword: "Unit of the model’s vocabulary: a word, or a part of a rare word.",
  "special tokens": "Tokens that the model adds around a text, such as [CLS], [SEP] and </s>.",
  entropy: "How spread out a distribution is, in bits: 0 for a single choice, 3 for eight equally likely ones.",
  distance: "Mean distance between a query and the keys it attends to, in tokens.",
  importance: "How much the loss rises when the head is ablated.",
  ablation: "Setting the output of a head to zero, to measure what the model loses without it.",
  coverage: "How evenly the columns are attended to: 100 % if each receives a total weight of 1.",
  confidence: "One minus normalised entropy: 100 % if each row attends to one column, 0 % if to all equally.",
  probability: "What the model assigns to a token, a label or an answer; over all of them it sums to 1.",
  temperature: "Divides the logits before the softmax: below 1 the distribution is more peaked, above 1 flatter.",
  "beam search": "Keeps the most probable partial texts, the hypotheses, instead of one.",
  hypothesis: "A partial text of a beam search, with its score.",
  rollout:
    "Product of the attention matrices of all layers, half of each replaced by its layer’s residual connection, if any.",
  "residual connection": "Adds the input of a layer to its output.",
  "value norm": "Length of a value vector: a large weight on a short value contributes little.",
  attribution: "How much the prediction depends on each token, computed independently of attention.",
  agreement: "Rank correlation of attribution and attention: 1 if they rank tokens alike, 0 if unrelated.",
  "positional encoding": "Vector or rotation that represents a position, because attention alone ignores order.",
  "cosine similarity": "Cosine of the angle between two vectors: 1 for the same direction, 0 for unrelated ones.",
};

// A word with the explanation of a term as its tooltip.
export function term(name, label = name) {
  return element("abbr", { class: "term", title: TERMS[name] }, label);
}
