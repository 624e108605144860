// Asks the server's model for a new record: another text, another target prefix, heads ablated.

import { current } from "./selection.js";
import { state, update } from "./state.js";
import { loadRecordList, store, streamRun } from "./store.js";

const progress = { report: () => {}, isRunning: false };

const recordIndex = (id) => store.records.findIndex((record) => record.id === id);

// Reloads the list of records. New records come first, so the indices of those shown are looked up again.
export async function refreshList() {
  const shownId = store.records[state.record]?.id;
  const comparedId = store.records[state.comparedWith]?.id;
  const hasChanged = await loadRecordList();
  state.record = recordIndex(shownId);
  state.comparedWith = recordIndex(comparedId);
  return hasChanged;
}

export function onRun(report) {
  progress.report = report;
}

export async function runText(task, text, options, shouldCompare = false) {
  if (progress.isRunning || !text.trim()) return;
  progress.isRunning = true;
  progress.report("the model is running …");
  try {
    const id = await streamRun(task, text, options, ({ step }) => {
      if (step) progress.report(`generated ${step.token}`);
    });
    await refreshList();
    progress.report("");
    const record = recordIndex(id);
    update(shouldCompare ? { record, comparedWith: state.record, view: "compare" } : { record });
  } catch (error) {
    progress.report(`the run failed: ${error.message}`);
  } finally {
    progress.isRunning = false;
  }
}

// Runs the current record's text again with other options.
export function rerun(options, shouldCompare = false) {
  const { record } = current;
  const { text } = record.texts.source || Object.values(record.texts)[0];
  return runText(record.task, text, options, shouldCompare);
}
