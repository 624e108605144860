// The records: all embedded in the file, or fetched one by one from the server that served the page.

const embedded = JSON.parse(document.getElementById("data").textContent);

export const isServed = Boolean(embedded.served);
export const store = { title: embedded.title, records: embedded.records || [], run: false, live: false, tasks: [] };

const fetchedRecords = new Map();

export const recordPath = (id) => `/r/${encodeURIComponent(id)}`;

const PATIENCE = 60_000; // milliseconds in which a request that a busy server refuses is repeated

// Fetches from the server; while it is busy, again after as many seconds as it names.
async function request(path, options) {
  const deadline = Date.now() + PATIENCE;
  let response = await fetch(path, { credentials: "same-origin", ...options });
  while (response.headers.has("Retry-After") && Date.now() < deadline) {
    const seconds = Number(response.headers.get("Retry-After"));
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    response = await fetch(path, { credentials: "same-origin", ...options });
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Error(body.error || `the server answered ${response.status}`);
}

// Fetches the list of records and what the server can do; tells whether the number of records has changed.
export async function loadRecordList() {
  if (!isServed) return false;
  const previousCount = store.records.length;
  Object.assign(store, await (await request("/records.json")).json());
  return store.records.length !== previousCount;
}

// The index of the record that the page was opened with.
export function initialRecord() {
  return Math.max(
    0,
    store.records.findIndex((record) => record.id === embedded.record),
  );
}

export async function loadRecord(index) {
  if (!isServed) return store.records[index];
  const { id } = store.records[index];
  if (!fetchedRecords.has(id)) fetchedRecords.set(id, await (await request(`${recordPath(id)}.json`)).json());
  return fetchedRecords.get(id);
}

export async function fetchBytes(path) {
  return new Uint8Array(await (await request(path)).arrayBuffer());
}

export async function fetchFigure(record, fields) {
  return (await request(`${recordPath(record.id)}/figure.svg?${new URLSearchParams(fields)}`)).text();
}

// Runs the model on a text and returns the id of the new record. The server streams JSON lines; each goes to `onLine`.
export async function streamRun(task, text, options, onLine) {
  const response = await request("/run", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ task, text, options }),
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unfinishedLine = "";
  let lastMessage = {};
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (unfinishedLine + (value || "")).split("\n");
    unfinishedLine = lines.pop();
    for (const line of lines.filter(Boolean)) {
      lastMessage = JSON.parse(line);
      if (lastMessage.error) throw new Error(lastMessage.error);
      onLine(lastMessage);
    }
    if (done) break;
  }
  if (!lastMessage.id) throw new Error("the server ended without a result");
  return lastMessage.id;
}
