// Fetches Gradio's event streams in parts (stream_parts.py), whose requests end within a moment:
// a stream that stays open would take one of the six connections that a browser has for all tabs.
//
// The server ends a stream with the last event of a page; Gradio opens another for the next event,
// unless it has yet to read that end: then the event's messages would never come. So Gradio gets a
// stream that does not end, in which the server's follow one another while there are events.
(() => {
  const direct = window.fetch;
  const running = new Set(); // ids of events
  const early = new Set(); // ids of events that ended before the page was told of them
  let wake = () => {};

  window.fetch = async (input, options) => {
    const { pathname } = new URL(input.url ?? input, location.href);
    if (pathname.endsWith("/queue/data")) return inParts(input);
    const answer = await direct(input, options);
    if (pathname.endsWith("/queue/join") && answer.ok) {
      const { event_id } = await answer.clone().json();
      if (!early.delete(event_id)) running.add(event_id);
      wake();
    }
    return answer;
  };

  function inParts({ url, signal }) {
    const left = new AbortController();
    let stream = null;
    const ask = (part, options) =>
      direct(url, { headers: { stream, part }, cache: "no-store", ...options });
    const leave = () => {
      left.abort();
      running.clear();
      if (stream) ask("end", { keepalive: true }).catch(() => {});
    };
    signal.addEventListener("abort", leave);
    addEventListener("pagehide", ({ persisted }) => persisted || leave());

    async function* messages() {
      for (;;) {
        while (!running.size)
          await new Promise((resolve) => {
            wake = resolve;
          });
        stream = crypto.getRandomValues(new Uint32Array(4)).join("-");
        for (let part = 0; stream; part++) {
          const answer = await ask(part, { signal: left.signal });
          if (!answer.ok) throw answer;
          yield* (await answer.text()).match(/.+\n\n/g) ?? [];
          if (answer.headers.get("stream-part") === "last") stream = null;
        }
      }
    }

    async function read(controller) {
      const encoder = new TextEncoder();
      try {
        for await (const message of messages()) {
          const { msg, event_id } = JSON.parse(message.slice("data:".length));
          if (msg === "process_completed" && !running.delete(event_id)) early.add(event_id);
          if (msg !== "close_stream") controller.enqueue(encoder.encode(message));
        }
      } catch (error) {
        if (left.signal.aborted) return;
        running.clear();
        controller.error(error);
      }
    }

    return new Response(new ReadableStream({ start: (controller) => void read(controller) }));
  }
})();
