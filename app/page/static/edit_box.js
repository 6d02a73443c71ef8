const CHARACTERS = { "&lt;": "<", "&gt;": ">", "&amp;": "&" }; // & last: the others start with it

/** Unescape the text in the chat's edit boxes: messages are HTML, the boxes are plain text. */
export function unescapeEditBoxes(chat) {
  const observer = new MutationObserver(() => {
    for (const box of chat.querySelectorAll("textarea:not([data-plain])")) {
      box.dataset.plain = "";
      box.value = Object.entries(CHARACTERS).reduce(
        (text, pair) => text.replaceAll(...pair),
        box.value,
      );
      box.dispatchEvent(new Event("input"));
    }
  });
  observer.observe(chat, { childList: true, subtree: true });
}
