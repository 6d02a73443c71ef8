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

/** Read a value, null if it is absent or if the browser blocks storage, which then throws. */
function read(storage, key) {
  try {
    return window[storage].getItem(key);
  } catch {
    return null;
  }
}

function write(storage, key, value) {
  try {
    window[storage].setItem(key, value);
  } catch {
    // The page works without.
  }
}

/** Store the session token. */
export const keepSession = (session) => {
  if (session) write("sessionStorage", SESSION, session);
};

/** The session token from before a reload. */
export const session = () => read("sessionStorage", SESSION) ?? "";

export const keepSettings = (...values) =>
  write("sessionStorage", SETTINGS, JSON.stringify(values));

/** The stored settings, or else those given. */
export function settings(...values) {
  const kept = JSON.parse(read("sessionStorage", SETTINGS) ?? "[]");
  return kept.length === values.length ? kept : values;
}

/** Open the stored tab, and store which one is opened. */
export function showTab(tabs) {
  const kept = read("sessionStorage", TAB);
  const all = [...tabs.querySelectorAll("[role=tab]")];
  all.find(({ textContent }) => kept && textContent.trim() === kept)?.click();
  tabs.addEventListener("click", ({ target }) => {
    const tab = target.closest("[role=tab], .overflow-dropdown button");
    if (tab) write("sessionStorage", TAB, tab.textContent.trim());
  });
}

/** Switch between light and dark at once, without transitions, and store the choice. */
export function toggleDark() {
  const { body } = document;
  body.classList.add("switching");
  const dark = body.classList.toggle("dark");
  body.getBoundingClientRect(); // applies the colours
  body.classList.remove("switching");
  write("localStorage", THEME, dark ? "dark" : "light");
}

/** Apply the stored theme. */
export function showTheme() {
  const theme = read("localStorage", THEME);
  if (theme) document.body.classList.toggle("dark", theme === "dark");
}

/** Store whether words fade. */
export const keepFades = (fades) => write("localStorage", FADES, String(fades));

/** True if words fade, which is the default. */
export const fades = () => read("localStorage", FADES) !== "false";
