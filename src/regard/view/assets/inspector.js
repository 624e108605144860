// The inspector: what the chosen word looked at, in numbers; the scale and its name; what the view shows.

import { hue, scaleBar } from "./colours.js";
import { barList, block, choices, fine, labelled, make, picker, row } from "./dom.js";
import { isBest, labelOf } from "./headmap.js";
import { total } from "./numbers.js";
import { carried, lookedRow, lookers } from "./scene.js";
import { change, state } from "./state.js";
import { entropy, NORMS, ranked } from "./tables.js";
import { counted, number, percent, siteOf, visible } from "./words.js";

const SHOWN = 10;
const parts = {};
const section = (title, ...things) => make("section", {}, title ? make("h2", {}, title) : "", ...things);

export function drawInspector(box, scene, view) {
  const { seen, layer, heads: heads_ = [], record } = scene;
  const about = section(
    "",
    make(
      "details", {}, make("summary", {}, "What is this?"), fine(view.what),
      fine("Attention says where this head looked, never why the model answered as it did.")
    )
  );
  const cuts = [record.cut || []].flat().filter((one) => one.dropped || one.why);
  const left = cuts.length ? section(
    "Left out", ...cuts.map((one) => fine(visible(`${one.dropped}: ${one.why}`)))
  ) : "";
  if (!seen) return box.replaceChildren(about, left);
  parts.looker = make("p", { class: "looker", dir: "auto" });
  parts.note = fine();
  parts.list = block("looked");
  const place = seen.layers.indexOf(layer);
  const sites = heads_.map((
    head, number_
  ) => make("span", { class: "site" }, heads_.length > 1 ? make(
    "i", { class: "dot", style: { background: hue(number_) } }
  ) : "",
    siteOf(seen, layer, head),
    make("span", { class: "fine" }, ` ${labelOf(seen, place, head)}${isBest(seen, layer, head) ? " ★" : ""}`)));
  return box.replaceChildren(
    section("", parts.looker, parts.note, parts.list),
    section(
      heads_.length > 1 ? `${counted(heads_.length, "head")}, averaged` : "Head",
      block("sites", ...sites)
    ),
    section("Scale", scaleOf(state.norm),
      labelled(
        "Weights ",
        picker(
          "normalisation (n)", Object.entries(NORMS).map(([key, [label]]) => [label, key]), state.norm,
          (norm) => change({ norm })
        )
      ),
      fine(`${NORMS[state.norm][1]}. Zero is the page’s own ground.`),
      row(choices(
        "words or pieces (w)", [["Words", "word"], ["Pieces", "piece"]], state.unit,
        (unit) => change({ unit, ...carried(scene, unit) })
      ),
        choices(
          "special tokens (x)",
          [["Specials", true, "special tokens are shown"], ["None", false, "special tokens are hidden"]],
          state.specials, (specials) => change({ specials, ...carried(scene, state.unit, specials) })
        ))),
    about, left);
}

function scaleOf(norm) {
  const [ticks, shade] = norm === "linear" ? [
    [0, 0.25, 0.5, 0.75, 1], (tick) => tick
  ] : [[0, 0.05, 0.25, 0.5, 1], Math.sqrt];
  return scaleBar("weights", ticks.map((tick) => [shade(tick), String(tick).replace("0.", ".")]));
}

export function markInspector(scene, live) {
  if (!scene.seen || !scene.rows.length) return;
  const seen = lookedRow(scene);
  const name = lookers(scene).map((place) => scene.rows[place].label).join(" ").slice(0, 120);
  const top = ranked(seen, SHOWN).filter((column) => seen[column] >= 0.004);
  const others = scene.columns.length - top.length;
  const whole_ = state.norm !== "max";
  const whole = whole_ ? total(seen) : 1;
  parts.looker.textContent = name;
  parts.note.textContent = `${scene.later ? "once this was written" : scene.seen.rowmeans === "produced" ? "while producing this" : "from here"}, the head looked at${whole_ ? ` (${entropy(seen).toFixed(1)} bits)` : ""}`;
  parts.list.replaceChildren(barList(
    top.map(
      (column) => ({ ...scene.columns[column], value: number(seen[column]), share: seen[column] / (whole || 1) })
    ),
    "looked at"
  ),
    others && whole_ ? fine(
      `+ ${counted(others, "other")}, ${percent(Math.max(0, whole - total(top.map((column) => seen[column]))))}`
    ) : "");
  const first = top.slice(0, 3).map(
    (column) => `${scene.columns[column].label.slice(0, 60)} ${number(seen[column])}`
  ).join(", ");
  say(live, `${name} looks at ${first || "nothing"}; layer ${scene.layer} head ${scene.heads.join(", ")}`);
}

let speaking = 0;

// Screen readers are told once the pointer rests.
export function say(live, text) {
  clearTimeout(speaking);
  speaking = setTimeout(() => { live.textContent = text; }, 90);
}
