// Flow: attention rollout through the layers, weights times value norms, and the ablation of heads.

import { loadOnce, range, rowSlice } from "./arrays.js";
import { decodeBlock, decodeRoot8 } from "./codec.js";
import {
  ariaBoolean,
  barList,
  button,
  element,
  notice,
  segmentedControl,
  smallText,
  titledBlock,
  toolbar,
} from "./dom.js";
import { headMetric, listHeads } from "./head-map.js";
import { Heatmap } from "./heatmap.js";
import { emptyTable, weightTable } from "./html-table.js";
import { attentionName, escapeInvisible, formatWeight } from "./labels.js";
import { rerun } from "./run.js";
import { axisUnits, isSelfAttention, queryRows, selectAttention } from "./selection.js";
import { state, update } from "./state.js";
import { fetchBytes, isServed, recordPath, store } from "./store.js";
import { term, TERMS } from "./terms.js";
import { headWeights } from "./weight-cache.js";
import { average, mergeSubwords, normalizeTable } from "./weight-tables.js";

const MAX_TOKENS = 256; // for rollout in the page
const MAX_SERVED_TOKENS = 1024; // for rollout on the server
const MAX_IMPORTANT_HEADS = 8;
const ROLLOUT = "rollout";
const VALUES = "values";
const IN_PROGRESS = "computing …";
const rollouts = new WeakMap(); // by attention: {values}, {message}, or {} while the server computes
const shown = { kind: ROLLOUT, heatmap: null, table: null };

// ---- numbers -------------------------------------------------------------------------------------------------------

// The product of two square matrices.
function multiply(left, right, size) {
  const product = new Float32Array(left.length);
  for (let offset = 0; offset < left.length; offset += size) {
    for (let inner = 0; inner < size; inner += 1) {
      const factor = left[offset + inner];
      if (!(factor > 0)) continue;
      for (let column = 0; column < size; column += 1) {
        product[offset + column] += factor * right[inner * size + column];
      }
    }
  }
  return product;
}

// Attention rollout (Abnar and Zuidema 2020): the product of (A + I) / 2 over layers, A averaged over heads, or of A
// without residual connections; null while weights are loading.
function rolloutMatrix(attention, size, redraw) {
  const layerWeights = attention.layers.map((layer) =>
    range(attention.heads, (head) => headWeights(attention, layer, head, redraw)),
  );
  if (!layerWeights.flat().every((weights) => weights instanceof Float32Array)) return null;
  return layerWeights.reduce((product, weights) => {
    const share = attention.residual ? 0.5 : 0;
    const mixed = average(weights).map((weight) => weight * (1 - share));
    for (let token = 0; token < size; token += 1) mixed[token * size + token] += share;
    return product ? multiply(mixed, product, size) : mixed;
  }, null);
}

// {attention, values} or {message}.
function rollout(record, redraw) {
  const selfAttentions = record.attention.filter(isSelfAttention);
  const attention = selfAttentions.find(({ name }) => name === state.attention) || selfAttentions[0];
  if (!attention) {
    return { message: "Rollout needs self-attention, which this record does not contain." };
  }
  if (rollouts.has(attention)) return { attention, message: IN_PROGRESS, ...rollouts.get(attention) };
  const size = record.texts[attention.rows].tokens.length;
  if (attention.blocks.every((block) => block.data) && size <= MAX_TOKENS) {
    const values = rolloutMatrix(attention, size, redraw);
    if (values) rollouts.set(attention, { values });
    return { attention, values, message: IN_PROGRESS };
  }
  if (!isServed || size > MAX_SERVED_TOKENS) {
    return {
      message: `This text has ${size} tokens: rollout takes at most ${MAX_TOKENS} in a page that is a file, ${MAX_SERVED_TOKENS} in a served page.`,
    };
  }
  requestRollout(record, attention, redraw);
  return { message: IN_PROGRESS };
}

async function requestRollout(record, attention, redraw) {
  rollouts.set(attention, {});
  try {
    const bytes = await fetchBytes(`${recordPath(record.id)}/flow/${encodeURIComponent(attention.name)}`);
    rollouts.set(attention, { values: decodeRoot8(bytes) });
  } catch (error) {
    rollouts.set(attention, { message: error.message });
  }
  redraw();
}

// The weights of a head times the norms of its values: {attention, values} or {message}.
function valueWeighted(record, redraw) {
  const qkv = (record.qkv || []).find(
    ({ attention, layer, head, v }) =>
      attention === state.attention && layer === state.layer && head === state.heads[0] && v,
  );
  if (!qkv) {
    return {
      message:
        "The record does not contain the values of this head, so its weights cannot be multiplied by their norms.",
    };
  }
  const attention = selectAttention(record);
  const [keyCount, valueSize] = qkv.v.shape;
  const weights = headWeights(attention, state.layer, state.heads[0], redraw);
  const values = loadOnce(qkv.v, () => decodeBlock(qkv.v), redraw);
  if (!values) return { message: "loading …" };
  const norms = range(keyCount, (key) => Math.hypot(...rowSlice(values, key, valueSize)));
  const weighted = weights.map((weight, index) => weight * norms[index % keyCount]);
  const columns = norms.map(() => ({}));
  return { attention, values: normalizeTable(weighted, columns, "text") };
}

// ---- ablation ------------------------------------------------------------------------------------------------------

function toggleAblated(site) {
  const { ablated } = state;
  update({ ablated: ablated.includes(site) ? ablated.filter((other) => other !== site) : [...ablated, site] });
}

function ablationSwitches(heads) {
  const switches = heads.map(({ layer, head, site }) =>
    element(
      "button",
      {
        class: "square wide",
        "aria-pressed": ariaBoolean(state.ablated.includes(site)),
        title: `ablate ${site}`,
        "aria-label": `ablate ${site}`,
        onclick: () => toggleAblated(site),
      },
      `${layer}·${head}`,
    ),
  );
  const { ablated } = state;
  return [
    element("div", { class: "switches", role: "group", "aria-label": "heads to ablate" }, ...switches),
    toolbar(
      button(`Run without ${ablated.length || "…"}`, () => rerun({ ablate: ablated }, true), {
        title: "run the model with these heads ablated, and compare",
        disabled: !ablated.length,
      }),
      button("Restore all", () => update({ ablated: [] }), { title: "ablate no head" }),
    ),
  ];
}

function importanceBars({ importance }, heads) {
  const sorted = [...heads].sort((left, right) => right.value - left.value);
  const metric = importance.metric ? ` (${escapeInvisible(importance.metric)})` : "";
  const items = sorted.slice(0, MAX_IMPORTANT_HEADS).map(({ site, value }) => ({
    label: site,
    value: formatWeight(value),
    share: value / (sorted[0].value || 1),
  }));
  return [
    smallText(term("importance", "Importance"), ` of heads by ablation${metric}, largest first:`),
    barList(items, "importance of heads"),
  ];
}

function headSwitches(record) {
  const attention = selectAttention(record);
  const importance = headMetric(attention, "importance");
  const canRun = isServed && store.run;
  if (!importance && !canRun) {
    return smallText(
      "The importance of heads was not measured for this record (--importance, or regard heads), and a page in a file cannot run the model.",
    );
  }
  const heads = listHeads(attention).map((entry) => ({
    ...entry,
    value: importance?.[entry.layerIndex]?.[entry.head],
  }));
  return element(
    "div",
    {},
    ...(canRun ? ablationSwitches(heads) : []),
    ...(importance ? importanceBars(attention, heads) : []),
  );
}

// ---- the view ------------------------------------------------------------------------------------------------------

function drawFlow(stage, record, { attention, values }) {
  const { columnText, rows, columns } = axisUnits(record, attention);
  const merged = mergeSubwords(values, columnText.tokens.length, rows, columns);
  shown.table = { rows, columns, values: normalizeTable(merged, columns, state.norm) };
  shown.heatmap = new Heatmap({
    ...shown.table,
    width: stage.clientWidth,
    height: Math.max(300, Math.min(480, window.innerHeight - 380)),
    isSelfAttention: isSelfAttention(attention),
    isMirrored: columnText.dir === "rtl",
    arrow: "←",
    name: `${shown.kind}, ${rows.length} rows by ${columns.length} columns`,
    onHover: (row, column) => shown.heatmap.mark(row, column),
    onPick: () => {},
  });
}

export const flow = {
  key: "flow",
  name: "Flow",
  term: "attention rollout",
  summary: "an estimate of how much of each input token reaches each position through all layers.",
  description:
    "Rollout multiplies the attention matrices of all layers, averaged over heads; half of each layer’s input passes through its residual connection, if any. The value-weighted matrix is that of one head, each weight multiplied by the length of the value vector. Below, heads can be ablated, or their importance is shown.",
  draw(stage, { record }, redraw) {
    const computed = (shown.kind === ROLLOUT ? rollout : valueWeighted)(record, redraw);
    const kinds = [
      ["Rollout, all layers", ROLLOUT, TERMS.rollout],
      ["Value-weighted, this head", VALUES, `weights × value norms. ${TERMS["value norm"]}`],
    ];
    const kindControl = segmentedControl("estimate of the flow", kinds, shown.kind, (kind) => {
      shown.kind = kind;
      redraw();
    });
    shown.heatmap = null;
    shown.table = null;
    if (computed.values) drawFlow(stage, record, computed);
    const caption = () => `${attentionName(computed.attention)}: share of each row that comes from each column`;
    stage.replaceChildren(
      toolbar(kindControl, smallText(computed.values ? caption() : "")),
      shown.heatmap?.element || notice(computed.message),
      titledBlock(term("ablation", "ablation of heads"), headSwitches(record)),
    );
    shown.heatmap?.layout();
  },
  mark: (scene) => shown.heatmap?.mark(Math.min(queryRows(scene)[0], shown.table.rows.length - 1), -1),
  table() {
    if (!shown.table) return emptyTable("Rollout is not available for this record");
    const { rows, columns, values } = shown.table;
    return weightTable("Share of each row that comes from each column", rows, columns, values);
  },
};
