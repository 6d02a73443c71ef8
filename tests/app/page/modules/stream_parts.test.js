import assert from "node:assert";
import { afterEach, beforeEach, test } from "node:test";

const URL_DATA = "http://localhost/gradio_api/queue/data?session_hash=s";
const message = (msg, event_id) => `data: ${JSON.stringify({ msg, event_id })}\n\n`;
const started = (id) => message("process_starts", id);
const completed = (id) => message("process_completed", id);
const CLOSE = message("close_stream");

let asked; // requests for parts: [stream, part]
let joined; // answers to the page's posts
let parts; // of the server: [content, last], or a status
let gradio; // it reads one stream at a time

/** The server: it gives the parts in their order, and waits while there is none. */
async function server(input, options = {}) {
  if (String(input).endsWith("/queue/join")) return Response.json({ event_id: joined.shift() });
  const { stream, part } = options.headers;
  asked.push([stream, part]);
  if (part === "end") return new Response();
  while (!parts.length) {
    options.signal.throwIfAborted();
    await new Promise((resolve) => setTimeout(resolve));
  }
  const [content, last] = [parts.shift()].flat();
  if (typeof content === "number") return new Response("", { status: content });
  return new Response(content, { headers: { "stream-part": last ? "last" : "more" } });
}

const join = (id) => {
  joined.push(id);
  return fetch("/gradio_api/queue/join", { method: "POST" });
};

/** Gradio's end of a stream. */
async function open() {
  gradio = new AbortController();
  const request = new Request(URL_DATA, { signal: gradio.signal });
  const reader = (await fetch(request)).body.getReader();
  const decoder = new TextDecoder();
  return async () => decoder.decode((await reader.read()).value);
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 20));

globalThis.window = globalThis;
globalThis.location = new URL("http://localhost/");
const pages = new EventTarget();
globalThis.addEventListener = pages.addEventListener.bind(pages);
globalThis.fetch = (...args) => server(...args);
await import("../../../../app/page/static/stream_parts.js");

beforeEach(() => {
  [asked, joined, parts] = [[], [], []];
});

afterEach(() => gradio.abort());

test("messages come in their order, and the end of the server's stream does not", async () => {
  parts.push([started("a") + completed("a"), false], ["", false], [CLOSE, true]);
  await join("a");
  const read = await open();
  assert.equal(await read(), started("a"));
  assert.equal(await read(), completed("a"));
  await settled();
  assert.deepEqual(
    asked.map(([, part]) => part),
    [0, 1, 2],
  );
  parts.push([completed("b") + CLOSE, true]);
  await join("b");
  assert.equal(await read(), completed("b"));
  assert.notEqual(asked[3][0], asked[0][0]);
});

test("an event that begins before the end is read gets its messages", async () => {
  await join("a");
  const read = await open();
  parts.push([completed("a"), false]);
  assert.equal(await read(), completed("a"));
  await join("b"); // the server has ended the stream
  parts.push([CLOSE, true], [completed("b") + CLOSE, true]);
  assert.equal(await read(), completed("b"));
});

test("an event may end before the page is told of it", async () => {
  await join("a");
  const read = await open();
  parts.push([completed("b"), false], [completed("a") + CLOSE, true]);
  assert.equal(await read(), completed("b"));
  await join("b");
  assert.equal(await read(), completed("a"));
  const before = asked.length;
  await settled();
  assert.equal(asked.length, before); // nobody waits for anything
});

test("an error reaches Gradio, which opens a stream anew", async () => {
  await join("a");
  parts.push(503);
  await assert.rejects(await open());
  await join("b");
  const read = await open();
  parts.push([completed("b") + CLOSE, true]);
  assert.equal(await read(), completed("b"));
});

for (const persisted of [true, false])
  test(`the server is told of a page that leaves, persisted: ${persisted}`, async () => {
    await join("a");
    const read = await open();
    parts.push([started("a"), false]);
    await read();
    pages.dispatchEvent(Object.assign(new Event("pagehide"), { persisted }));
    await settled();
    assert.equal(
      asked.some(([, part]) => part === "end"),
      !persisted,
    );
    parts.push([completed("a") + CLOSE, true]);
    if (persisted) assert.equal(await read(), completed("a"));
  });

test("a stream that Gradio has ended wakes for no event of the next", async () => {
  await join("a");
  const old = await open();
  parts.push([completed("a") + CLOSE, true]);
  await old();
  await settled();
  gradio.abort();
  await join("b");
  const read = await open();
  parts.push([completed("b") + CLOSE, true]);
  assert.equal(await read(), completed("b"));
});
