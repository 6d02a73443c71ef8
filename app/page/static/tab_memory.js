/**
 * The things that a tab keeps when it is loaded again. The session's secret and the settings, with
 * the system prompt among them, end with the tab: the next person at this machine finds nothing of
 * a chat. The browser keeps the theme, and if words fade.
 */
const SESSION = "gateloop.session";
const SETTINGS = "gateloop.settings";
const THEME = "gateloop.theme"; // of the browser, as the next one
const FADES = "gateloop.fades";

/** A secret of the session. */
export const keepSession = (session) => {
  if (session) sessionStorage.setItem(SESSION, session);
};

/** The secret of the session before the page was loaded again. */
export const session = () => sessionStorage.getItem(SESSION) ?? "";

export const keepSettings = (...values) => sessionStorage.setItem(SETTINGS, JSON.stringify(values));

/** The settings that were kept, or else those given. */
export function settings(...values) {
  const kept = JSON.parse(sessionStorage.getItem(SETTINGS) ?? "[]");
  return kept.length === values.length ? kept : values;
}

/** Change between light and dark, and keep it. */
export function turnDark() {
  const dark = document.body.classList.toggle("dark");
  localStorage.setItem(THEME, dark ? "dark" : "light");
}

/** Show the theme that was kept. */
export function showTheme() {
  const theme = localStorage.getItem(THEME);
  if (theme) document.body.classList.toggle("dark", theme === "dark");
}

/** Keep the choice to let words fade, or not. */
export const keepFades = (fades) => localStorage.setItem(FADES, String(fades));

/** True if words fade, as they do until somebody chooses otherwise. */
export const fades = () => localStorage.getItem(FADES) !== "false";
