// Decoding: how the output was generated, step by step: token probabilities, attention, the tree of beams.

import { sum } from "./arrays.js";
import { setShade, shadeLevel } from "./colours.js";
import {
  ariaBoolean,
  barList,
  button,
  clamp,
  div,
  element,
  fieldLabel,
  moveTabStop,
  slider,
  smallText,
  svgBox,
  svgElement,
  titledBlock,
  toolbar,
  truncateText,
} from "./dom.js";
import { escapeInvisible, formatPercent, formatWeight, pluralize } from "./labels.js";
import { paragraph, tokenElement } from "./lines.js";
import { rerun } from "./run.js";
import { axisUnits, current, headTables, selectAttention } from "./selection.js";
import { state, update } from "./state.js";
import { isServed, store } from "./store.js";
import { term, TERMS } from "./terms.js";
import { average, queryRow } from "./weight-tables.js";

const PLAY_INTERVAL = 700; // milliseconds per step
const BEAM_WIDTH = 92; // pixels per step in the tree
const BEAM_HEIGHT = 24;
const MAX_TREE_STEPS = 200;
const ENTROPY_HEIGHT = 44;
const player = { timer: 0, temperature: 1 }; // and the elements that follow the current step

const tokenLabel = (text) => escapeInvisible(text.replace(/^ /, "▁")) || "∅";
const lastStep = () => current.record.steps.length - 1;
const goToStep = (step) => update({ step: clamp(step, 0, lastStep()) });
const canRun = () => isServed && store.run;

// Attention at each step: the selected one if its rows are generated tokens, else the first that is.
function attentionAtStep(record, redraw) {
  const generated = record.attention.filter((attention) => attention.row_meaning === "generated" || attention.causal);
  const attention = generated.find(({ name }) => name === state.attention) || generated[0];
  if (!attention) return null;
  const axes = axisUnits(record, attention, "subword", true);
  const isSelected = attention === selectAttention(record);
  const layer = isSelected ? state.layer : attention.layers.at(-1);
  const tables = headTables(record, attention, layer, isSelected ? state.heads : [0], axes, redraw);
  return tables && { attention, axes, layer, table: average(tables) };
}

// Probabilities of the stored candidates at another temperature.
function applyTemperature(candidates) {
  const probabilities = candidates.map(([, probability]) => probability);
  if (player.temperature === 1) return probabilities;
  const powers = probabilities.map((probability) => probability ** (1 / player.temperature));
  const total = sum(powers) || 1;
  return powers.map((power) => power / total);
}

function play(shouldPlay = !player.timer) {
  clearInterval(player.timer);
  player.timer = 0;
  if (shouldPlay) {
    if (state.step >= lastStep()) goToStep(0);
    player.timer = setInterval(() => {
      if (state.view !== "decoding" || state.step >= lastStep()) play(false);
      else goToStep(state.step + 1);
    }, PLAY_INTERVAL);
  }
  player.playButton.textContent = player.timer ? "Pause" : "Play";
}

// ---- beam tree -----------------------------------------------------------------------------------------------------

// The beam of each step that led to the output, followed back from the last one.
function bestPath(steps) {
  let beam = -1;
  const backwards = [...steps].reverse().map(({ token, beams = [] }) => {
    if (beam < 0) beam = beams.findIndex(([, text]) => text === token);
    const bestBeam = beam;
    beam = beams[beam]?.[0] ?? -1;
    return bestBeam;
  });
  return backwards.reverse();
}

function beamElements(steps, column, beam, path) {
  const [parent, text, score] = steps[column].beams[beam];
  const x = 10 + column * BEAM_WIDTH;
  const y = 14 + beam * BEAM_HEIGHT;
  const isBest = path[column] === beam;
  const label = svgElement(
    "text",
    { class: isBest ? "beam on" : "beam", x, y: y + 4 },
    svgElement("title", {}, `${tokenLabel(text)}, log-probability ${score}`),
    truncateText(tokenLabel(text), BEAM_WIDTH - 30),
  );
  if (!column || parent < 0) return ["", label];
  const parentY = 14 + parent * BEAM_HEIGHT;
  const parentLabel = tokenLabel(steps[column - 1]?.beams?.[parent]?.[1] ?? "");
  const end = x - 4;
  const start = Math.min(end - 12, x - BEAM_WIDTH + 8 + 7 * Math.min(9, parentLabel.length));
  const edge = svgElement("path", {
    class: isBest && path[column - 1] === parent ? "beam-edge on" : "beam-edge",
    d: `M${start} ${parentY}C${end - 6} ${parentY} ${start + 6} ${y} ${end} ${y}`,
  });
  return [edge, label];
}

function beamTree(steps) {
  const beamCount = Math.max(0, ...steps.map((step) => step.beams?.length || 0));
  if (beamCount < 2) return "";
  const path = bestPath(steps);
  const shapes = steps
    .slice(0, MAX_TREE_STEPS)
    .flatMap((step, column) => (step.beams || []).flatMap((_, beam) => beamElements(steps, column, beam, path)));
  const width = Math.min(MAX_TREE_STEPS, steps.length) * BEAM_WIDTH + 10;
  const name = `beam tree: ${pluralize(beamCount, "hypothesis", "hypotheses")} per step; the generated text is bold`;
  const tree = svgBox(width, beamCount * BEAM_HEIGHT + 8, {}, ...shapes);
  return titledBlock(
    term("beam search", "beam tree"),
    element("div", { class: "beams", tabindex: "0", role: "img", "aria-label": name }, tree),
  );
}

// ---- entropy -------------------------------------------------------------------------------------------------------

function entropyPlot(steps) {
  const width = clamp(steps.length * 18, 160, 640);
  const maxEntropy = Math.max(0.5, ...steps.map((step) => step.entropy || 0));
  const barWidth = width / steps.length;
  player.entropyBars = steps.map((step, index) => {
    const height = Math.max(1, ((step.entropy || 0) / maxEntropy) * ENTROPY_HEIGHT);
    return svgElement("rect", {
      class: "entropy-bar",
      x: index * barWidth + 1,
      width: Math.max(1, barWidth - 2),
      y: ENTROPY_HEIGHT - height,
      height,
      onclick: () => goToStep(index),
    });
  });
  const attributes = { role: "img", class: "plotted", "aria-label": "entropy of each step" };
  return titledBlock(
    term("entropy"),
    svgBox(width, ENTROPY_HEIGHT, attributes, ...player.entropyBars),
    smallText(`of the distribution at each step, up to ${maxEntropy.toFixed(1)} bits`),
  );
}

// ---- the view ------------------------------------------------------------------------------------------------------

function temperatureControl(redrawStep) {
  const output = element("output", {}, player.temperature.toFixed(1));
  const control = slider(
    "temperature",
    10 * player.temperature,
    25,
    (tenths) => {
      player.temperature = Math.max(1, tenths) / 10;
      output.textContent = player.temperature.toFixed(1);
      redrawStep();
    },
    TERMS.temperature,
  );
  return fieldLabel(term("temperature"), " ", control, " ", output);
}

function sourceParagraph({ attention, axes, layer }) {
  const title = `attention of ${escapeInvisible(attention.name)}, layer ${layer}`;
  return paragraph(title, axes.columnText, axes.columns, player.sourceTokens);
}

// The most probable next tokens; on a server, choosing another one decodes again with it in the target prefix.
function candidateList(steps, index) {
  const { token, top: candidates = [] } = steps[index];
  const targetPrefix = steps.slice(0, index).map((step) => step.token);
  const probabilities = applyTemperature(candidates);
  const items = candidates.map(([text], rank) => ({
    label: tokenLabel(text),
    value: formatWeight(probabilities[rank]),
    share: probabilities[rank],
    isSelected: text === token,
    title: "decode again with this token",
    onPress: canRun() && text !== token && (() => rerun({ target_prefix: [...targetPrefix, text] })),
  }));
  return barList(items, "most probable next tokens");
}

export const decoding = {
  key: "decoding",
  name: "Decoding",
  term: "token probabilities and beam tree",
  summary: "how the output was generated, token by token.",
  description:
    "At each step the model assigns a probability to every token of its vocabulary; bars show the most probable ones. The source is shaded by the attention of the selected head at this step. The tree shows the hypotheses of the beam search: one column per step, the generated text in bold.",
  missing: (record) =>
    record.steps?.length ? "" : "This record has no decoding steps: they exist for translations and generated texts.",
  draw(stage, scene, redraw) {
    const { steps, texts } = scene.record;
    player.attention = attentionAtStep(scene.record, redraw);
    player.tokens = steps.map((step, index) =>
      tokenElement({ label: tokenLabel(step.token) }, "button", { onclick: () => goToStep(index) }),
    );
    player.slider = slider("step", 0, steps.length - 1, goToStep, "decoding step (← →)");
    player.playButton = button("Play", () => play(), { title: "show one step after the other (Space)" });
    player.summary = smallText();
    player.candidates = element("div");
    player.sourceTokens = player.attention?.axes.columns.map((unit) => tokenElement(unit));
    const hint = canRun()
      ? smallText("Choose another token: decoding starts again with it as the end of the target prefix.")
      : "";
    stage.replaceChildren(
      toolbar(player.playButton, player.slider, player.summary),
      paragraph("generated tokens", texts.target, steps, player.tokens),
      player.attention ? sourceParagraph(player.attention) : "",
      div(
        "pair",
        titledBlock(
          "most probable next tokens",
          player.candidates,
          temperatureControl(() => this.mark(scene)),
          hint,
        ),
        entropyPlot(steps),
      ),
      beamTree(steps),
    );
    this.mark(scene);
  },
  mark({ record: { steps } }) {
    const stepIndex = clamp(state.step, 0, steps.length - 1);
    const { token, probability, entropy } = steps[stepIndex];
    const label = tokenLabel(token);
    player.slider.value = stepIndex;
    player.slider.setAttribute("aria-valuetext", label);
    const position = `step ${stepIndex + 1} of ${steps.length}`;
    player.summary.replaceChildren(
      `${position}: ${label}, `,
      term("probability"),
      ` ${formatPercent(probability)}, `,
      term("entropy"),
      ` ${(entropy || 0).toFixed(2)} bits`,
    );
    player.tokens.forEach((node, index) => {
      node.classList.toggle("later", index > stepIndex);
      node.setAttribute("aria-pressed", ariaBoolean(index === stepIndex));
    });
    moveTabStop(player.tokens, stepIndex);
    player.entropyBars.forEach((bar, index) => bar.classList.toggle("on", index === stepIndex));
    player.candidates.replaceChildren(candidateList(steps, stepIndex));
    if (!player.attention) return;
    const { table, axes } = player.attention;
    const weights = queryRow(table, player.sourceTokens.length, [Math.min(stepIndex, axes.rows.length - 1)]);
    player.sourceTokens.forEach((node, column) => setShade(node, shadeLevel(state.norm)(weights[column])));
  },
  table: ({ record }) => ({
    caption: "Each decoding step",
    head: ["token", "probability", "entropy (bits)", "alternatives"],
    selected: state.step,
    onPick: goToStep,
    rows: record.steps.map(({ token, probability, entropy = 0, top: candidates = [] }) => {
      const others = candidates.filter(([text]) => text !== token).slice(0, 4);
      const alternatives = others.map(([text, share]) => `${tokenLabel(text)} ${formatWeight(share)}`);
      return [tokenLabel(token), formatWeight(probability), entropy.toFixed(2), alternatives.join(", ")];
    }),
  }),
  onLeft: () => goToStep(state.step - 1),
  onRight: () => goToStep(state.step + 1),
  onSpace: () => play(),
};
