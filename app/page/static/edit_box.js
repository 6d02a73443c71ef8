const CHARACTERS = { "&lt;": "<", "&gt;": ">", "&amp;": "&" }; // & last: the others start with it
const BUTTONS = { Enter: 0, Escape: 1 }; // below an edit box

/**
 * Unescape the text in the chat's edit boxes: messages are HTML, the boxes are plain text. Enter
 * sends it, Escape cancels.
 */
export function unescapeEditBoxes(chat) {
  const observer = new MutationObserver(() => {
    for (const box of chat.querySelectorAll("textarea:not([data-plain])")) {
      box.dataset.plain = "";
      for (const pair of Object.entries(CHARACTERS)) box.value = box.value.replaceAll(...pair);
      box.dispatchEvent(new Event("input"));
    }
  });
  observer.observe(chat, { childList: true, subtree: true });
  chat.addEventListener("keydown", (event) => {
    const number = BUTTONS[event.key];
    if (!event.target.matches("textarea") || number === undefined) return;
    if (event.shiftKey || event.isComposing) return;
    event.preventDefault();
    const buttons = event.target.closest(".message-row").nextElementSibling;
    buttons.querySelectorAll("button")[number].click();
    document.querySelector("#chat-box textarea").focus();
  });
}
