// Where records come from: all of them inside the file, or one by one from the server that gave the page.

const given = JSON.parse(document.getElementById("data").textContent);

export const served = Boolean(given.served);
export const shelf = { title: given.title, records: given.records || [], run: false, live: false, tasks: [] };

const whole = new Map();

async function fetched(address, options) {
  const answer = await fetch(address, { credentials: "same-origin", ...options });
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Error(told.error || `the server answered ${answer.status}`);
}

// Returns whether anything is new.
export async function readShelf() {
  if (!served) return false;
  const before = shelf.records.length;
  Object.assign(shelf, await (await fetched("/records.json")).json());
  return shelf.records.length !== before;
}

export function startsWith() {
  return Math.max(0, shelf.records.findIndex((one) => one.id === given.record));
}

export async function wholeRecord(place) {
  if (!served) return shelf.records[place];
  const { id } = shelf.records[place];
  if (!whole.has(id)) whole.set(id, await (await fetched(`/r/${encodeURIComponent(id)}.json`)).json());
  return whole.get(id);
}

export async function bytesOf(address) {
  return new Uint8Array(await (await fetched(address)).arrayBuffer());
}

export async function drawnByServer(record, fields) {
  return (await fetched(`/r/${encodeURIComponent(record.id)}/figure.svg?${new URLSearchParams(fields)}`)).text();
}

// Runs the model on a text; lines arrive as they are known, the last one names the new record.
export async function ran(task, text, options, tell) {
  const answer = await fetched("/run", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ task, text, options }),
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let [rest, last] = ["", {}];
  for (;;) {
    const { value, done } = await reader.read();
    rest += value || "";
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      last = JSON.parse(line);
      if (last.error) throw new Error(last.error);
      tell(last);
    }
    if (done) break;
  }
  if (!last.id) throw new Error("the server ended without a result");
  return last.id;
}
