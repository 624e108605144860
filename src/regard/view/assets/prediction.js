// Prediction: label probabilities, or the start and end of an answer; and the attribution of the prediction to tokens.

import { setShade, signedBar, signedLevel, sparkline } from "./colours.js";
import {
  ariaBoolean,
  barList,
  element,
  segmentedControl,
  select,
  smallText,
  svgBox,
  svgElement,
  titledBlock,
  toolbar,
} from "./dom.js";
import { escapeInvisible, formatPercent, formatWeight, textUnits } from "./labels.js";
import { paragraph, tokenElement } from "./lines.js";
import { term } from "./terms.js";

const MAX_LABELS = 40;
const CURVE_HEIGHT = 120;
const MAX_SEGMENTS = 3; // attribution methods that are offered side by side
const METHODS = {
  "gradient×input": "gradient of the output by each embedding, multiplied by the embedding",
  "integrated gradients": "gradients summed along a path from an empty input to this one",
  occlusion: "change of the output when a token is replaced",
};
const NO_SPAN = [0, -1];
const selected = { method: 0, answer: 0 };

const attributedText = ({ texts }, attribution) => texts[attribution?.side || "source"] || Object.values(texts)[0];

export function labelBars({ labels, probabilities }) {
  const order = [...probabilities.keys()].sort((left, right) => probabilities[right] - probabilities[left]);
  const items = order.slice(0, MAX_LABELS).map((index, rank) => ({
    label: escapeInvisible(labels[index]),
    value: formatPercent(probabilities[index]),
    share: probabilities[index],
    isSelected: rank === 0,
  }));
  return barList(items, "labels");
}

// Probabilities of start and end along the passage, the selected answer shaded.
function spanCurves({ start, end, answers = [] }, width) {
  const max = Math.max(0.01, ...start, ...end);
  const [firstToken, lastToken] = answers[selected.answer] || NO_SPAN;
  const span = svgElement("rect", {
    class: "span",
    x: (firstToken / start.length) * width,
    width: Math.max(0, ((lastToken - firstToken + 1) / start.length) * width),
    y: 0,
    height: CURVE_HEIGHT,
  });
  const name = "probability of the answer’s start and end along the passage";
  return element(
    "div",
    {},
    svgBox(
      width,
      CURVE_HEIGHT,
      { class: "plotted", role: "img", "aria-label": name },
      span,
      sparkline(start, width, CURVE_HEIGHT, 0, max, "start"),
      sparkline(end, width, CURVE_HEIGHT, 0, max, "end"),
    ),
    smallText(
      element("i", { class: "dot start" }),
      "start ",
      element("i", { class: "dot end" }),
      `end: probability of each token of the passage (at most ${formatWeight(max)})`,
    ),
  );
}

function answerList({ answers = [], none }, redraw) {
  const items = answers.map(([, , text, score], index) => {
    const selectAnswer = () => {
      if (selected.answer === index) return;
      selected.answer = index;
      redraw();
    };
    const attributes = {
      class: "answer",
      "aria-pressed": ariaBoolean(index === selected.answer),
      title: "mark this answer in the text",
      onpointerenter: selectAnswer,
      onclick: selectAnswer,
    };
    const label = element("span", { dir: "auto" }, escapeInvisible(text).slice(0, 200) || "∅");
    return element(
      "li",
      {},
      element("button", attributes, label, element("span", { class: "value" }, formatWeight(score))),
    );
  });
  const noAnswer = typeof none === "number" ? smallText(`no answer in the passage: ${formatPercent(none)}`) : "";
  return element("div", {}, element("ol", { class: "bar-list" }, ...items), noAnswer);
}

// The text coloured by attribution: orange for the prediction, blue against it.
function attributedPassage(record, attribution) {
  const text = attributedText(record, attribution);
  const units = textUnits(text, false);
  const level = signedLevel(Math.max(1e-9, ...(attribution?.values || [0]).map(Math.abs)));
  const [firstToken, lastToken] = record.prediction?.answers?.[selected.answer] || NO_SPAN;
  const tokens = units.map((unit, index) => {
    const value = attribution?.values[index];
    const label = unit.label.replace(/^▁/, "");
    const token = tokenElement({ ...unit, label }, "span", { title: value?.toPrecision(3) });
    token.classList.toggle("in-span", index >= firstToken && index <= lastToken);
    return value === undefined ? token : setShade(token, level(value), "signed");
  });
  return paragraph("the text", text, units, tokens);
}

// The choice of attribution methods, the legend and the agreement with attention.
function attributionChart({ attribution: methods = [] }, redraw) {
  if (!methods.length) return smallText("Attribution was not computed for this record.");
  const options = methods.map(({ method, target }, index) => [
    `${escapeInvisible(method)}, of ${escapeInvisible(target).slice(0, 40)}`,
    index,
    METHODS[method] ?? "method of attribution",
  ]);
  const selectMethod = (index) => {
    selected.method = index;
    redraw();
  };
  const control = methods.length > MAX_SEGMENTS ? select : segmentedControl;
  const { agreement, backend, difference } = methods[selected.method];
  return titledBlock(
    term("attribution"),
    toolbar(control("attribution", options, selected.method, selectMethod)),
    signedBar("supports", "opposes"),
    typeof agreement === "number"
      ? smallText(term("agreement", "Agreement"), ` with attention (rank correlation): ${formatWeight(agreement)}.`)
      : "",
    backend
      ? smallText(
          `Computed by ${escapeInvisible(backend)}, whose log-probability differs from the answer's by ${Number(difference || 0).toPrecision(2)}.`,
        )
      : "",
  );
}

function predictionSummary(predicted, stage, redraw) {
  if (!predicted) return "";
  if (predicted.labels) return titledBlock("labels, most probable first", labelBars(predicted));
  const curves = spanCurves(predicted, Math.min(860, stage.clientWidth - 8));
  return titledBlock("answers, best first", answerList(predicted, redraw), curves);
}

const labelTable = ({ labels, probabilities }) => ({
  caption: "Probability of each label",
  head: ["label", "probability"],
  rows: labels.map((label, index) => [escapeInvisible(label), formatWeight(probabilities[index])]),
});

const answerTable = ({ answers }) => ({
  caption: "Answers, best first",
  head: ["answer", "first token", "last token", "score"],
  rows: answers.map(([firstToken, lastToken, text, score]) => [
    escapeInvisible(text),
    `${firstToken}`,
    `${lastToken}`,
    formatWeight(score),
  ]),
});

function attributionTable(record, attribution) {
  const units = textUnits(attributedText(record, attribution), false);
  return {
    caption: `${escapeInvisible(attribution.method)} of ${escapeInvisible(attribution.target)}`,
    head: ["token", "value"],
    rows: units.map((unit, index) => [unit.label, attribution.values[index]?.toPrecision(3) ?? ""]),
  };
}

export const prediction = {
  key: "prediction",
  name: "Prediction",
  term: "label probabilities, answer spans, attribution",
  summary: "what the model predicts, and which tokens the prediction depends on.",
  description:
    "Labels, or answer spans, with their probabilities. Below, the text is coloured by attribution, which is computed independently of attention: orange supports the prediction, blue opposes it. The agreement of attribution and attention is a number.",
  missing: (record) =>
    record.prediction || record.attribution?.length
      ? ""
      : "This record has no prediction: records of classifiers and of question answering have one, and those with attribution.",
  draw(stage, { record }, redraw) {
    selected.method = Math.min(selected.method, Math.max(0, (record.attribution?.length || 0) - 1));
    stage.replaceChildren(
      predictionSummary(record.prediction, stage, redraw),
      attributedPassage(record, record.attribution?.[selected.method]),
      attributionChart(record, redraw),
    );
  },
  mark() {},
  table({ record }) {
    const predicted = record.prediction;
    if (!predicted) return attributionTable(record, record.attribution[selected.method]);
    return predicted.labels ? labelTable(predicted) : answerTable(predicted);
  },
};
