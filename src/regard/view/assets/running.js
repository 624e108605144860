// Asking the server's model for a new record: another sentence, another choice, heads switched off.

import { opened } from "./scene.js";
import { ran, readShelf, shelf } from "./shelf.js";
import { change, state } from "./state.js";

const running = { tell: () => {}, busy: false };

const placeOf = (id) => shelf.records.findIndex((one) => one.id === id);

// Reads the list again; new records come first, so that those that are shown have moved.
export async function refreshed() {
  const ids = [state.record, state.with].map((place) => shelf.records[place]?.id);
  const isNew = await readShelf();
  [state.record, state.with] = ids.map(placeOf);
  return isNew;
}

export function onRun(tell) {
  running.tell = tell;
}

export async function runText(task, text, options, compare = false) {
  if (running.busy || !text.trim()) return;
  running.busy = true;
  running.tell("the model is at work …");
  try {
    const id = await ran(task, text, options, (line) => { if (line.step) running.tell(`wrote ${line.step.token}`); });
    await refreshed();
    running.tell("");
    const record = placeOf(id);
    change(compare ? { record, with: state.record, view: "compare" } : { record });
  } catch (error) {
    running.tell(`that did not work: ${error.message}`);
  } finally {
    running.busy = false;
  }
}

// The same text again with other options.
export function redo(options, compare = false) {
  const { record } = opened;
  return runText(record.task, (record.texts.source || Object.values(record.texts)[0]).text, options, compare);
}
