const BUTTONS = { conversations: "#list-button", settings: "#settings-button" };

/** Close an open sidebar with Escape, and focus the button that opened it. */
export function closeWithEscape() {
  document.addEventListener("keydown", ({ isComposing, key, target }) => {
    const open = document.querySelector("#conversations.open, #settings.open");
    if (key !== "Escape" || isComposing || !open || target.closest("#tabs, dialog")) return;
    open.querySelector(".toggle-button").click();
    document.querySelector(BUTTONS[open.id]).focus();
  });
}
