/** Close an open sidebar with Escape, and focus the button that opened it. */
export function closeWithEscape() {
  const withOwnEscape = "#tabs, dialog, #save-name"; // leaving the title's box would save it
  document.addEventListener("keydown", ({ isComposing, key, target }) => {
    const open = document.querySelector("#conversations.open, #settings.open");
    if (key !== "Escape" || isComposing || !open || target.closest(withOwnEscape)) return;
    open.querySelector(".toggle-button").click();
    document.querySelector(open.id === "settings" ? "#settings-button" : "#list-button").focus();
  });
}
