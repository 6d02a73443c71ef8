/**
 * Storage in the browser. The session token and the settings, including the system prompt, end with
 * the tab, so that the next user of this machine finds nothing of a chat. The theme and the fading
 * of words stay.
 */
const SESSION = "gateloop.session";
const SETTINGS = "gateloop.settings";
const TAB = "gateloop.tab";
const THEME = "gateloop.theme"; // in localStorage, as the next one
const FADES = "gateloop.fades";

/** Store the session token. */
export const keepSession = (session) => {
  if (session) sessionStorage.setItem(SESSION, session);
};

/** The session token from before a reload. */
export const session = () => sessionStorage.getItem(SESSION) ?? "";

export const keepSettings = (...values) => sessionStorage.setItem(SETTINGS, JSON.stringify(values));

/** The stored settings, or else those given. */
export function settings(...values) {
  const kept = JSON.parse(sessionStorage.getItem(SETTINGS) ?? "[]");
  return kept.length === values.length ? kept : values;
}

/** Open the stored tab, and store which one is opened. */
export function showTab(tabs) {
  const kept = sessionStorage.getItem(TAB);
  const all = [...tabs.querySelectorAll("[role=tab]")];
  all.find(({ textContent }) => kept && textContent.trim() === kept)?.click();
  tabs.addEventListener("click", ({ target }) => {
    const tab = target.closest("[role=tab], .overflow-dropdown button");
    if (tab) sessionStorage.setItem(TAB, tab.textContent.trim());
  });
}

/** Switch between light and dark at once, without transitions, and store the choice. */
export function toggleDark() {
  const { body } = document;
  body.classList.add("switching");
  const dark = body.classList.toggle("dark");
  body.getBoundingClientRect(); // applies the colours
  body.classList.remove("switching");
  localStorage.setItem(THEME, dark ? "dark" : "light");
}

/** Apply the stored theme. */
export function showTheme() {
  const theme = localStorage.getItem(THEME);
  if (theme) document.body.classList.toggle("dark", theme === "dark");
}

/** Store whether words fade. */
export const keepFades = (fades) => localStorage.setItem(FADES, String(fades));

/** True if words fade, which is the default. */
export const fades = () => localStorage.getItem(FADES) !== "false";
