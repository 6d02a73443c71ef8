const KEPT_MS = 60_000; // for the browser to save the file

export const saveView = async (view) => {
  const status = view.find("saved");
  const withSystem = view.find("with-system input").checked;
  status.textContent = "Making the page…";
  const answer =
    view.run && (await view.server.share([view.run, Number(withSystem)]).catch(() => null));
  status.textContent = answer ? answer.message : "There is nothing to share yet.";
  if (!answer) return;
  const url = URL.createObjectURL(new Blob([answer.page], { type: "text/html" }));
  download(url, answer.name);
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
};

export function download(href, name) {
  Object.assign(document.createElement("a"), { href, download: name }).click();
}
