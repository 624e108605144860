// Flow: attention followed through the layers down to the input, weighed by what was passed on, and heads switched off.

import { decoded, fromRoots } from "./codes.js";
import { barList, button, choices, fine, make, notice, row, titled, truth } from "./dom.js";
import { headsOf, metricOf } from "./headmap.js";
import { matrix } from "./matrix.js";
import { arrived, lineAt, upTo } from "./numbers.js";
import { redo } from "./running.js";
import { lookers, seenOf, sidesOf } from "./scene.js";
import { bytesOf, served, shelf } from "./shelf.js";
import { change, state } from "./state.js";
import { emptyTable, weightTable } from "./tableform.js";
import { average, merged, scaled } from "./tables.js";
import { weightsOf } from "./weights.js";
import { kindName, number, visible } from "./words.js";

const LONGEST = 256; // tokens that the page follows itself
const SERVED = 1024; // tokens that a server follows
const stream = { kind: "rollout", cache: new WeakMap(), big: null, now: null };

function times(left, right, size) {
  const made = new Float32Array(left.length);
  for (let line = 0; line < left.length; line += size) {
    for (let middle = 0; middle < size; middle += 1) {
      const by = left[line + middle];
      if (by > 0) for (
        let column = 0; column < size; column += 1
      ) made[line + column] += by * right[middle * size + column];
    }
  }
  return made;
}

// Half of each layer's input goes past its attention: A' = (A + 1) / 2, multiplied up from the first layer.
function rolled(seen, size, redraw) {
  const layers = seen.layers.map((layer) => upTo(seen.heads, (head) => weightsOf(seen, layer, head, redraw)));
  if (!layers.flat().every((one) => one instanceof Float32Array)) return null;
  return layers.reduce((product, weights) => {
    const mixed = average(weights).map((weight) => weight / 2);
    for (let place = 0; place < size; place += 1) mixed[place * size + place] += 0.5;
    return product ? times(mixed, product, size) : mixed;
  }, null);
}

function rollout(record, redraw) {
  const selves = record.attention.filter((one) => one.rows === one.cols);
  const seen = selves.find((one) => one.name === state.attn) || selves[0];
  if (!seen) return {
    say: "Attention can be followed where a text looks at itself; no such attention is in this record."
  };
  const size = record.texts[seen.rows].tokens.length;
  if (stream.cache.has(seen)) return { seen, say: "following …", ...stream.cache.get(seen) };
  if (seen.blocks.every((block) => block.data) && size <= LONGEST) {
    const values = rolled(seen, size, redraw);
    if (values) stream.cache.set(seen, { values });
    return { seen, values, say: "following …" };
  }
  if (!served || size > SERVED) return {
    say: `This text has ${size} tokens; a page in a file follows at most ${LONGEST} through the layers, the served page ${SERVED}.`
  };
  stream.cache.set(seen, {});
  const known = (found) => { stream.cache.set(seen, found); redraw(); };
  bytesOf(`/r/${encodeURIComponent(record.id)}/flow/${encodeURIComponent(seen.name)}`).then(
    (bytes) => known({ values: fromRoots(bytes) }), (error) => known({ say: error.message })
  );
  return { say: "following …" };
}

// A head's weights times the length of what each column gives.
function valued(record, redraw) {
  const inside = (record.inside || []).find(
    (one) => one.attention === state.attn && one.layer === state.layer && one.head === state.heads[0] && one.v
  );
  if (!inside) return {
    say: "The values of this head were not kept in the record, so its weights cannot be weighed by them."
  };
  const seen = seenOf(record);
  const [count, wide] = inside.v.shape;
  const weights = weightsOf(seen, state.layer, state.heads[0], redraw);
  const given_ = arrived(inside.v, () => decoded(inside.v), redraw);
  if (!given_) return { say: "opening …" };
  const lengths = upTo(count, (key) => Math.hypot(...lineAt(given_, key, wide)));
  return {
    seen,
    values: scaled(weights.map((weight, place) => weight * lengths[place % count]), lengths.map(() => ({})), "text")
  };
}

function switches(record) {
  const seen = seenOf(record);
  const by = metricOf(seen, "importance");
  const live_ = served && shelf.run;
  if (!by && !live_) return fine(
    "What each head’s loss would cost was not measured for this record (regard heads does), and a page in a file cannot run the model."
  );
  const all = headsOf(seen).map((one) => ({ ...one, value: by?.[one.place]?.[one.head] }));
  const flip = (site) => change(
    { off: state.off.includes(site) ? state.off.filter((one) => one !== site) : [...state.off, site] }
  );
  const toggles = live_ ? [
    make(
      "div", { class: "switches", role: "group", "aria-label": "heads switched off" },
      ...all.map(
        ({ layer, head, site }) => make(
          "button",
          {
            class: "square wide", "aria-pressed": truth(state.off.includes(site)), "aria-label": `switch off ${site}`,
            onclick: () => flip(site)
          },
          `${layer}·${head}`
        )
      )
    ),
    row(
      button(
        `Run without ${state.off.length || "…"}`, () => redo({ off: state.off }, true), { disabled: !state.off.length }
      ),
      button("All on", () => change({ off: [] }))
    ),
  ] : [];
  if (by) all.sort((one, other) => other.value - one.value);
  const worst = by ? [
    fine(
      `What is lost without a head${seen.importance.metric ? ` (${visible(seen.importance.metric)})` : ""}, the most first:`
    ),
    barList(
      all.slice(0, 8).map(
        ({ site, value }) => ({ label: site, value: number(value), share: value / (all[0].value || 1) })
      )
    )
  ] : [];
  return make("div", {}, ...toggles, ...worst);
}

export const flow = {
  key: "flow", name: "Flow",
  what: "Rollout multiplies the attention of all layers, half of each layer’s input going past it: how much of each input word may have reached each output. Values: weights times the length of what each word gives. Below: what is lost without a head.",
  draw(stage, { record }, redraw) {
    const found = (stream.kind === "rollout" ? rollout : valued)(record, redraw);
    const kinds = choices(
      "what flows", [["Rollout, all layers", "rollout"], ["Values, this head", "values"]], stream.kind,
      (kind) => { stream.kind = kind; redraw(); }
    );
    stream.big = stream.now = null;
    if (found.values) {
      const { to, rows, columns } = sidesOf(record, found.seen);
      const values = scaled(merged(found.values, to.tokens.length, rows, columns), columns, state.norm);
      stream.now = { rows, columns, values };
      stream.big = matrix({
        ...stream.now, width: stage.clientWidth, height: Math.max(300, Math.min(480, window.innerHeight - 380)),
        own: found.seen.rows === found.seen.cols, flip: to.dir === "rtl", sign: "←",
        name: `${stream.kind}, ${rows.length} rows by ${columns.length} columns`,
        hover: (y, x) => stream.big.mark(y, x), pick: () => {},
      });
    }
    stage.replaceChildren(
      row(
        kinds, fine(found.values ? `${kindName(found.seen)}: how much of each column may have reached each row` : "")
      ),
      stream.big?.element || notice(found.say), titled("heads switched off", switches(record))
    );
    stream.big?.layout();
  },
  mark: (scene) => stream.big?.mark(Math.min(lookers(scene)[0], stream.now.rows.length - 1), -1),
  table: () => (
    stream.now ? weightTable(
      "How much of each input may have reached each row", stream.now.rows, stream.now.columns, stream.now.values
    ) : emptyTable("Nothing to follow in this record")
  ),
};
