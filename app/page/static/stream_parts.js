// Fetches Gradio's event streams in parts (stream_parts.py), whose requests end within a moment:
// a stream that stays open would take one of the six connections that a browser has for all tabs.
(() => {
  const direct = window.fetch;
  window.fetch = (input, options) =>
    input instanceof Request && new URL(input.url).pathname.endsWith("/queue/data")
      ? inParts(input)
      : direct(input, options);

  async function inParts({ url, signal }) {
    const stream = crypto.getRandomValues(new Uint32Array(4)).join("-");
    let number = 0;
    const ask = (part, options) =>
      direct(url, { headers: { stream, part }, cache: "no-store", ...options });
    const end = () => ask("end", { keepalive: true }).catch(() => {});
    const next = async () => {
      const answer = await ask(number++, { signal });
      if (!answer.ok) throw answer;
      return answer;
    };
    let answer = await next();
    const stop = () => {
      removeEventListener("pagehide", end);
      signal.removeEventListener("abort", end);
    };
    addEventListener("pagehide", end);
    signal.addEventListener("abort", end);
    const parts = new ReadableStream({
      async pull(controller) {
        try {
          answer ??= await next();
          controller.enqueue(new Uint8Array(await answer.arrayBuffer()));
          if (answer.headers.get("stream-part") === "last") {
            stop();
            controller.close();
          }
          answer = null;
        } catch (error) {
          stop();
          const wanted = !signal.aborted; // Gradio has not yet read all that it wants
          if (wanted) controller.error(error);
          else controller.close();
        }
      },
    });
    return new Response(parts);
  }
})();
