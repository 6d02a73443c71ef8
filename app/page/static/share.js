import { NO_REPLY } from "./counterfactual.js";

const LARGEST = 240_000; // bytes of a file, as JSON
const KEPT_MS = 60_000; // for the browser to save the file

export const saveView = async (view) => {
  const status = view.find("saved");
  const withSystem = view.find("with-system input").checked;
  status.textContent = "Making the page…";
  const answer =
    view.run && (await view.server.share([view.run, Number(withSystem)]).catch(() => null));
  const none = view.run ? NO_REPLY : "There is nothing to share yet.";
  status.textContent = answer?.message ?? answer?.error ?? none;
  if (answer?.page) save(answer.name, answer.page);
};

/** Save a text or bytes as a file. */
export function save(name, content) {
  const type = name.endsWith(".html") ? "text/html" : "text/plain";
  const url = URL.createObjectURL(new Blob([content], { type }));
  download(url, name);
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
}

/** Let the user choose a file; returns its name, size and text, which is empty if it is large. */
export function pickText() {
  const input = Object.assign(document.createElement("input"), { type: "file", accept: ".json" });
  input.click();
  return new Promise((done) => {
    input.onchange = async () => {
      const [file] = input.files;
      const text = file.size > LARGEST ? "" : await file.text();
      const size = Math.max(file.size, new Blob([JSON.stringify(text)]).size);
      done([file.name, size, size > LARGEST ? "" : text]);
    };
  });
}

export function download(href, name) {
  Object.assign(document.createElement("a"), { href, download: name }).click();
}
