// The page: its frame, which view is drawn, and how a change of state becomes a drawing.

import { align } from "./align.js";
import { compare, nameOf } from "./compare.js";
import { block, button, make, notice, picker, root, truth } from "./dom.js";
import { flow } from "./flow.js";
import { drawHeadMap } from "./headmap.js";
import { heads } from "./headsview.js";
import { drawInspector, markInspector, say } from "./inspector.js";
import { helpBox, keysOf, listenForKeys } from "./keys.js";
import { look } from "./look.js";
import { maths } from "./maths.js";
import { saveFigure } from "./picture.js";
import { placeView } from "./place.js";
import { onRun, refreshed, runText } from "./running.js";
import { ahead, composed, opened } from "./scene.js";
import { readShelf, served, shelf, wholeRecord } from "./shelf.js";
import { applyAddress, change, fitState, keepAddress, openBest, readAddress, state, watchState, writeAddress } from "./state.js";
import { steps } from "./steps.js";
import { tableOf } from "./tableform.js";
import { startTheme, turnTheme } from "./theme.js";
import { verdict } from "./verdict.js";
import { visible } from "./words.js";

const VIEWS = [look, heads, align, steps, maths, placeView, verdict, flow, compare];
const page = document.getElementById("page");
const live = document.getElementById("live");
const here = {};
let scene = null;

const viewNow = () => VIEWS.find((one) => one.key === state.view) || look;
const nothing = (view, record) => view.missing?.(record)
  || (record.attention.length || view === verdict || view === placeView ? "" : "This record has no attention weights.");

// ---- drawing -----------------------------------------------------------------------------------------------------

function draw() {
  if (!opened.record) return;
  fitState(opened.record);
  drawBar();
  drawHeadMap(here.map);
  const view = viewNow();
  try {
    const fresh = composed(soon);
    here.stage.setAttribute("aria-busy", truth(!fresh));
    if (!fresh) return; // the old drawing stays until the weights have come
    scene = fresh;
    // a word tells more than a mark
    if (state.q < 0) state.q = Math.max(0, scene.rows.findIndex((unit) => !unit.special));
    here.stage.dataset.view = view.key;
    drawInspector(here.inspector, scene, view);
    const missing = nothing(view, opened.record);
    if (missing) here.stage.replaceChildren(notice(missing));
    else if (state.table) here.stage.replaceChildren(tableOf(view.table(scene)));
    else view.draw(here.stage, scene, soon);
    markInspector(scene, live);
    requestAnimationFrame(prepare); // when this has been painted
  } catch (error) {
    here.stage.replaceChildren(notice(visible(error.message)));
    console.warn(error);
  }
}

let pause = 0;

function prepare() {
  clearTimeout(pause);
  const act = () => {
    try {
      if (here.stage.ariaBusy !== "true") ahead(scene, later, state.table ? null : viewNow().ready);
    } catch {
      // what cannot be had is told when it is asked for
    }
  };
  const later = () => (pause = setTimeout(act, 1));
  if (served && scene?.seen) pause = setTimeout(act, 20);
}

let drawing = 0;

// However much has come at once, it is drawn once.
function soon() {
  cancelAnimationFrame(drawing);
  drawing = requestAnimationFrame(draw);
}

function mark() {
  const view = viewNow();
  if (!scene || nothing(view, opened.record)) return;
  if (state.table) {
    const chosen_ = state.view === "steps" ? state.step : state.pins[0] ?? state.q;
    here.stage.querySelectorAll("tbody tr").forEach((line, place) => line.classList.toggle("on", place === chosen_));
  } else view.mark(scene, soon);
  markInspector(scene, live);
}

function drawBar() {
  const { made = {}, texts } = opened.record;
  const facts = [
    made.model, made.epoch !== undefined && `epoch ${made.epoch}`, made.off?.length && `without ${made.off}`,
    made.when && String(made.when).slice(0, 10),
    made.version && `Regard ${made.version}`
  ];
  here.about.textContent = visible(facts.filter(Boolean).join(" · "));
  here.chooser.replaceChildren(
    shelf.records.length > 1 ? picker(
      "record", shelf.records.map((one, place) => [nameOf(one), place]), state.record,
      (place) => change({ record: place })
    ) : ""
  );
  here.tableTool.setAttribute("aria-pressed", truth(state.table));
  const shown = Object.entries(texts).filter(
    ([name]) => !texts.source || ["source", "target"].includes(name)
  ).slice(0, 2);
  here.texts.replaceChildren(...shown.map((
    [name, side]
  ) => make("p", { class: `text ${name === "target" ? "target" : "source"}` },
    make("span", { class: "side" }, visible(name)),
    make("span", { dir: side.dir || "auto", lang: side.lang || null }, visible(side.text.slice(0, 1500))))));
  here.rail.replaceChildren(...VIEWS.map((one, place) => make("button", {
    "aria-current": one === viewNow() ? "page" : null, class: nothing(one, opened.record) ? "empty" : "",
    title: `${one.name} (${place + 1})`, onclick: () => change({ view: one.key }),
  }, make("span", { class: "key", "aria-hidden": "true" }, place + 1), one.name)));
  if (
    here.rail.scrollWidth > here.rail.clientWidth
  ) here.rail.scrollLeft = here.rail.querySelector("[aria-current]").offsetLeft - here.rail.clientWidth / 3;
}

// ---- frame -------------------------------------------------------------------------------------------------------

function frame(acts) {
  const piece = (name, tag, attributes = {}) => (here[name] = make(tag, { class: name, ...attributes }));
  here.tableTool = button("Table", () => change({ table: !state.table }), { title: "as a table (v)" });
  piece(
    "find", "input",
    {
      type: "search", placeholder: "find a word", "aria-label": "find a word", hidden: true, oninput: () => acts.seek(),
      onkeydown: (event) => { if (event.key === "Enter") acts.seek(true); }
    }
  );
  page.append(
    make("header", {}, make("h1", { dir: "auto" }, visible(shelf.title)), piece("about", "p"), piece("chooser", "div"),
      block("tools", here.find, here.tableTool, button(
        "Share", acts.share, { title: "copy a link to just this" }
      ), button("Figure", acts.figure, { title: "save a figure (f)" }),
        button("?", acts.help, { title: "keys (?)", "aria-label": "help: keys" }),
        button("◐", acts.theme, { title: "light or dark (t)", "aria-label": "light or dark" }))),
    shelf.run ? sentenceBox() : "", piece("told", "p", { role: "status" }),
    block("columns", piece("rail", "nav", { "aria-label": "views" }),
      block("main", piece("texts", "div"), piece("stage", "section", { "aria-label": "the view" }),
        piece("map", "section", { "aria-label": "head map" })
      ),
      piece("inspector", "aside", { "aria-label": "inspector" })), acts.box);
}

function sentenceBox() {
  const box = make(
    "input",
    {
      type: "text", class: "sentence", maxlength: 20000, "aria-label": "a text for the model",
      placeholder: "Type a text for the model", dir: "auto"
    }
  );
  const send = (event) => {
    event.preventDefault();
    runText(shelf.tasks.includes(opened.record.task) ? opened.record.task : shelf.tasks[0], box.value, {});
  };
  return make(
    "form", { class: "ask", onsubmit: send }, box, make("button", { class: "tool strong", type: "submit" }, "Run")
  );
}

function actsOf() {
  const tell = (text) => { here.told.textContent = visible(text); };
  const acts = {
    views: VIEWS, view: viewNow, scene: () => scene, redraw: soon, tell,
    theme: () => turnTheme(draw),
    help: () => acts.box.showModal(),
    figure: () => saveFigure(here.stage, tell),
    close: () => { here.find.hidden = true; here.find.value = ""; tell(""); },
    find: () => { here.find.hidden = false; here.find.focus(); },
    share: async () => {
      writeAddress();
      const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
      tell(copied ? "a link to just this was copied" : `the link: ${location.href}`);
    },
    seek: (again) => {
      const word = here.find.value.toLowerCase();
      const found = [...scene.rows.keys()].filter(
        (place) => word && scene.rows[place].label.toLowerCase().includes(word)
      );
      const place = (again && found.find((one) => one > state.q)) ?? found[0];
      if (place !== undefined) change({ q: place, pins: [place] });
      tell(word && !found.length ? `no word has “${word}” in it` : "");
    },
  };
  return acts;
}

// ---- start -------------------------------------------------------------------------------------------------------

async function openRecords() {
  const [place, other] = [state.record, state.with];
  try {
    const records = await Promise.all([wholeRecord(place), other >= 0 ? wholeRecord(other) : null]);
    if (place !== state.record || other !== state.with) return;
    const first = !opened.record;
    [opened.record, opened.other] = records;
    if (first || !opened.record.attention.some((one) => one.name === state.attn)) openBest(opened.record);
    if (first) applyAddress(opened.record);
    draw();
    keepAddress();
  } catch (error) {
    here.told.textContent = `that did not open: ${visible(error.message)}`;
  }
}

// A training that runs adds records; the newest is shown.
async function follow() {
  if (await refreshed().catch(() => false)) change({ record: 0 });
}

async function start() {
  const names = VIEWS.map((one) => one.key);
  startTheme(readAddress(names), draw);
  const acts = actsOf();
  const table = keysOf(acts);
  acts.box = helpBox(table, VIEWS);
  await readShelf();
  readAddress(names);
  frame(acts);
  onRun(acts.tell);
  watchState({ draw, mark, prepare, open: openRecords });
  listenForKeys(table, () => acts.box.open);
  await openRecords();
  say(live, `${viewNow().name} is shown`);
  window.addEventListener("resize", soon);
  window.addEventListener("hashchange", () => { readAddress(names); applyAddress(opened.record); openRecords(); });
  if (shelf.live) setInterval(follow, 3000);
  root.dataset.ready = "yes";
  performance.mark("first view");
}

start().catch(
  (error) => { page.append(notice(`The page was not drawn: ${error.message}`)); console.warn(error); }
);
