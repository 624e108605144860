// The page: its frame, the current view, and how a change of state becomes a drawing.

import { compare, recordName } from "./compare.js";
import { decoding } from "./decoding.js";
import { ariaBoolean, button, div, element, notice, root, select, smallText } from "./dom.js";
import { saveFigure } from "./figure-export.js";
import { flow } from "./flow.js";
import { drawHeadMap } from "./head-map.js";
import { heads } from "./heads.js";
import { htmlTable } from "./html-table.js";
import { announce, drawInspector, markInspector } from "./inspector.js";
import { escapeInvisible } from "./labels.js";
import { lines } from "./lines.js";
import { math } from "./math.js";
import { matrix } from "./matrix.js";
import { positions } from "./positions.js";
import { prediction } from "./prediction.js";
import { onRun, refreshList, runText } from "./run.js";
import { buildScene, current, prefetch } from "./selection.js";
import { buildShortcuts, helpDialog, listenForShortcuts } from "./shortcuts.js";
import {
  applyAddress,
  clampState,
  readAddress,
  scheduleAddress,
  selectBestHead,
  state,
  subscribe,
  update,
  writeAddress,
} from "./state.js";
import { isServed, loadRecord, loadRecordList, store } from "./store.js";
import { startTheme, toggleTheme } from "./theme.js";

// A view is {key, name, term, summary, description, draw(stage, scene, redraw), mark(scene, redraw), table(scene)}, where
// `term` is what others call it; optional are missing(record), the reason why there is nothing to draw; prerender(values,
// axes); onLeft, onRight, onSpace.
const VIEWS = [lines, heads, matrix, decoding, math, positions, prediction, flow, compare];
const VIEW_KEYS = VIEWS.map((view) => view.key);
const MAX_TEXT = 1500; // characters of a text above the view
const MAX_INPUT = 20000; // characters of a text for the model
const PREFETCH_DELAY = 20; // milliseconds
const FOLLOW_INTERVAL = 3000; // milliseconds
const page = document.getElementById("page");
const live = document.getElementById("live");
const regions = {}; // elements of the frame by their class
let scene = null;

const currentView = () => VIEWS.find((view) => view.key === state.view) || lines;

// Why a view has nothing to draw; empty if it has.
function missingReason(view, record) {
  const reason = view.missing?.(record);
  if (reason) return reason;
  const needsAttention = view !== prediction && view !== positions;
  return needsAttention && !record.attention.length ? "This record has no attention weights." : "";
}

// ---- drawing -------------------------------------------------------------------------------------------------------

const focusName = (node) => `${node.tagName} ${node.getAttribute("aria-label") || node.title || node.textContent}`;

// Controls are drawn anew with every change: the focus moves to the one of the same name.
function restoreFocus(focused, name) {
  if (focused.isConnected) return;
  const controls = [...page.querySelectorAll("button, select, input, summary, [role=gridcell]")];
  controls.find((node) => node.tabIndex >= 0 && focusName(node) === name)?.focus({ preventScroll: true });
}

function draw() {
  if (!current.record) return;
  const focused = document.activeElement;
  const name = focusName(focused);
  drawRegions();
  restoreFocus(focused, name);
}

function drawRegions() {
  clampState(current.record);
  drawHeader();
  drawViewList();
  drawExplanation(currentView());
  drawHeadMap(regions.map);
  try {
    const newScene = buildScene(scheduleDraw);
    regions.stage.setAttribute("aria-busy", ariaBoolean(!newScene));
    if (!newScene) return; // the old drawing stays until the weights have arrived
    scene = newScene;
    if (state.query < 0) state.query = firstWord(scene.rows);
    drawStage(currentView());
    markInspector(scene, live);
    requestAnimationFrame(schedulePrefetch); // after this drawing has been painted
  } catch (error) {
    regions.stage.replaceChildren(notice(escapeInvisible(error.message)));
    console.warn(error);
  }
}

const firstWord = (rows) =>
  Math.max(
    0,
    rows.findIndex((unit) => !unit.special),
  );

function drawStage(view) {
  const { stage, inspector } = regions;
  stage.dataset.view = view.key;
  drawInspector(inspector, scene);
  const reason = missingReason(view, current.record);
  if (reason) stage.replaceChildren(notice(reason));
  else if (state.table) stage.replaceChildren(htmlTable(view.table(scene)));
  else view.draw(stage, scene, scheduleDraw);
}

let prefetchTimer = 0;

function schedulePrefetch() {
  clearTimeout(prefetchTimer);
  if (isServed && scene?.attention) prefetchTimer = setTimeout(runPrefetch, PREFETCH_DELAY);
}

// Returns the timer, which tells `prefetch` that it is to stop.
function resumePrefetch() {
  prefetchTimer = setTimeout(runPrefetch, 1);
  return prefetchTimer;
}

function runPrefetch() {
  try {
    const prerender = state.table ? null : currentView().prerender;
    if (regions.stage.ariaBusy !== "true") prefetch(scene, resumePrefetch, prerender);
  } catch {
    // Errors are shown when the weights are selected.
  }
}

let drawFrame = 0;

// Draws once per frame, however many weights have arrived.
function scheduleDraw() {
  cancelAnimationFrame(drawFrame);
  drawFrame = requestAnimationFrame(draw);
}

// Follows what is pointed at without drawing anew.
function mark() {
  const view = currentView();
  if (!scene || missingReason(view, current.record)) return;
  if (state.table) {
    const selected = state.view === "decoding" ? state.step : (state.pins[0] ?? state.query);
    const tableRows = regions.stage.querySelectorAll("tbody tr");
    tableRows.forEach((tableRow, index) => tableRow.classList.toggle("on", index === selected));
  } else view.mark(scene, scheduleDraw);
  markInspector(scene, live);
}

// Facts about the record, the choice of records, and the texts.
function drawHeader() {
  const { provenance = {}, texts } = current.record;
  const facts = [
    provenance.model,
    provenance.backend,
    provenance.epoch !== undefined && `epoch ${provenance.epoch}`,
    provenance.ablated?.length && `without ${provenance.ablated}`,
    provenance.when && String(provenance.when).slice(0, 10),
    provenance.version && `Regard ${provenance.version}`,
  ];
  regions.about.textContent = escapeInvisible(facts.filter(Boolean).join(" · "));
  const options = store.records.map((record, index) => [recordName(record), index]);
  const selectRecord = (index) => update({ record: index });
  const chooser = () => select("record", options, state.record, selectRecord, "record that is shown (, .)");
  regions.chooser.replaceChildren(options.length > 1 ? chooser() : "");
  regions.tableTool.setAttribute("aria-pressed", ariaBoolean(state.table));
  const shownTexts = Object.entries(texts)
    .filter(([name]) => !texts.source || ["source", "target"].includes(name))
    .slice(0, 2);
  regions.texts.replaceChildren(...shownTexts.map(([name, text]) => textLine(name, text)));
}

function textLine(name, text) {
  const content = escapeInvisible(text.text.slice(0, MAX_TEXT));
  return element(
    "p",
    { class: `text ${name === "target" ? "target" : "source"}` },
    element("span", { class: "side" }, escapeInvisible(name)),
    element("span", { dir: text.dir || "auto", lang: text.lang || null }, content),
  );
}

const capitalize = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// What the view is, in one sentence; the rest on request. The element stays, and with it whether it is open.
function drawExplanation({ term, summary, description }) {
  const caution =
    "Attention weights show what a head attends to, not why the model gave its output. To test what a head does, ablate it.";
  regions["what-is-this"].replaceChildren(
    element("summary", {}, element("b", {}, "What is this?"), ` ${capitalize(term)}: ${summary}`),
    smallText(description),
    smallText(caution),
  );
}

function drawViewList() {
  const viewList = regions["view-list"];
  const buttons = VIEWS.map((view, index) =>
    element(
      "button",
      {
        "aria-current": view === currentView() ? "page" : null,
        class: missingReason(view, current.record) ? "empty" : "",
        title: `${capitalize(view.term)}: ${view.summary} (${index + 1})`,
        onclick: () => update({ view: view.key }),
      },
      element("span", { class: "key", "aria-hidden": "true" }, index + 1),
      view.name,
    ),
  );
  viewList.replaceChildren(...buttons);
  if (viewList.scrollWidth > viewList.clientWidth) {
    viewList.scrollLeft = viewList.querySelector("[aria-current]").offsetLeft - viewList.clientWidth / 3;
  }
}

// ---- frame ---------------------------------------------------------------------------------------------------------

function addRegion(name, tag, attributes = {}) {
  regions[name] = element(tag, { class: name, ...attributes });
  return regions[name];
}

function buildFrame(actions, dialog) {
  page.append(
    element(
      "header",
      {},
      element("h1", { dir: "auto" }, escapeInvisible(store.title)),
      addRegion("about", "p"),
      addRegion("chooser", "div"),
      headerTools(actions),
    ),
    store.run ? runForm() : "",
    addRegion("status", "p", { role: "status" }),
    div(
      "columns",
      addRegion("view-list", "nav", { "aria-label": "views" }),
      div(
        "main",
        addRegion("what-is-this", "details"),
        addRegion("texts", "div"),
        addRegion("stage", "section", { "aria-label": "view" }),
        addRegion("map", "section", { "aria-label": "head map" }),
      ),
      addRegion("inspector", "aside", { "aria-label": "inspector" }),
    ),
    dialog,
  );
}

function headerTools(actions) {
  const searchInput = addRegion("search", "input", {
    type: "search",
    placeholder: "find a token",
    title: "select the first query that contains this; Enter: the next (/)",
    "aria-label": "find a token",
    hidden: true,
    oninput: () => actions.search(),
    onkeydown: (event) => {
      if (event.key === "Enter") actions.search(true);
    },
  });
  regions.tableTool = button("Table", () => update({ table: !state.table }), {
    title: "the view as a table of numbers (v)",
  });
  return div(
    "tools",
    searchInput,
    regions.tableTool,
    button("Share", actions.share, { title: "copy a link to this view" }),
    button("Figure", actions.saveFigure, { title: "save the figure as SVG (f)" }),
    button("?", actions.showHelp, { title: "help: keys and terms (?)", "aria-label": "help: keys and terms" }),
    button("◐", actions.toggleTheme, { title: "light or dark theme (t)", "aria-label": "light or dark theme" }),
  );
}

// The form for a new text, where a server has a model.
function runForm() {
  const input = element("input", {
    type: "text",
    class: "run-text",
    maxlength: MAX_INPUT,
    title: "text for the model; Enter runs it",
    "aria-label": "text for the model",
    placeholder: "Enter a text for the model",
    dir: "auto",
  });
  const submit = (event) => {
    event.preventDefault();
    const { task } = current.record;
    runText(store.tasks.includes(task) ? task : store.tasks[0], input.value, {});
  };
  const submitButton = element(
    "button",
    { class: "tool strong", type: "submit", title: "run the model on this text" },
    "Run",
  );
  return element("form", { class: "run-form", onsubmit: submit }, input, submitButton);
}

// ---- actions -------------------------------------------------------------------------------------------------------

function report(text) {
  regions.status.textContent = escapeInvisible(text);
}

function closeSearch() {
  regions.search.hidden = true;
  regions.search.value = "";
  report("");
}

function openSearch() {
  regions.search.hidden = false;
  regions.search.focus();
}

// Pins the first row that contains the search term, or the next one after the current row.
function search(isRepeated) {
  const term = regions.search.value.toLowerCase();
  const matches = [...scene.rows.keys()].filter((row) => term && scene.rows[row].label.toLowerCase().includes(term));
  const match = (isRepeated && matches.find((row) => row > state.query)) ?? matches[0];
  if (match !== undefined) update({ query: match, pins: [match] });
  report(term && !matches.length ? `no token contains “${term}”` : "");
}

async function share() {
  writeAddress();
  const isCopied = await navigator.clipboard?.writeText(location.href).then(
    () => true,
    () => false,
  );
  report(isCopied ? "the link to this view was copied" : `the link: ${location.href}`);
}

// ---- start ---------------------------------------------------------------------------------------------------------

async function openRecords() {
  const { record: index, comparedWith } = state;
  try {
    const loading = [loadRecord(index), comparedWith >= 0 ? loadRecord(comparedWith) : null];
    const [record, other] = await Promise.all(loading);
    if (index !== state.record || comparedWith !== state.comparedWith) return;
    const isFirst = !current.record;
    Object.assign(current, { record, other });
    const hasAttention = record.attention.some(({ name }) => name === state.attention);
    if (isFirst || !hasAttention) selectBestHead(record);
    if (isFirst) applyAddress(record);
    draw();
    scheduleAddress();
  } catch (error) {
    regions.status.textContent = `the record could not be opened: ${escapeInvisible(error.message)}`;
  }
}

// Shows the newest record while a training adds them.
async function followTraining() {
  if (await refreshList().catch(() => false)) update({ record: 0 });
}

function onAddressChange() {
  readAddress(VIEW_KEYS);
  applyAddress(current.record);
  openRecords();
}

async function start() {
  startTheme(readAddress(VIEW_KEYS), draw);
  const actions = {
    views: VIEWS,
    view: currentView,
    scene: () => scene,
    redraw: scheduleDraw,
    toggleTheme: () => toggleTheme(draw),
    saveFigure: () => saveFigure(regions.stage, report),
    showHelp: () => dialog.showModal(),
    closeSearch,
    openSearch,
    search,
    share,
  };
  const shortcuts = buildShortcuts(actions);
  const dialog = helpDialog(shortcuts, VIEWS);
  await loadRecordList();
  readAddress(VIEW_KEYS);
  buildFrame(actions, dialog);
  onRun(report);
  subscribe({ draw, mark, prefetch: schedulePrefetch, open: openRecords });
  listenForShortcuts(shortcuts, () => dialog.open);
  await openRecords();
  announce(live, `${currentView().name} is shown`);
  window.addEventListener("resize", scheduleDraw);
  window.addEventListener("hashchange", onAddressChange);
  if (store.live) setInterval(followTraining, FOLLOW_INTERVAL);
  root.dataset.ready = "yes";
  performance.mark("first view");
}

start().catch((error) => {
  page.append(notice(`The page could not be drawn: ${error.message}`));
  console.warn(error);
});
