const COPIED_MS = 2000;

/** Copy whole answers, with the marks of Markdown, which page.css hides. */
export function copyAnswers(chat) {
  chat.addEventListener("click", async ({ target }) => {
    const button = target.closest(".copy_answer");
    if (!button) return;
    await write(button.parentElement.textContent);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), COPIED_MS);
  });
}

/** Browsers have a clipboard on secure pages only: those of this machine, or with https. */
async function write(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
