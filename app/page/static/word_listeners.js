import { canPaint } from "./paint.js";
import { fades, keepFades } from "./tab_memory.js";
import { chosen, whole } from "./word_list.js";

const SELECT_MS = 200; // after the last change of a selection
const LONGEST = 50_000; // a longer request is refused before the app sees it
const TOO_LONG = "Not sent: the message is too long. It stays in the box.";
const WAIT = "Wait for the end of the answer, or press Stop. Your message stays in the box.";
const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 };

/** Add the listeners: clicks, selections and keys choose words; buttons act on them. */
export function listen(view) {
  const { chat } = view.text;
  listenToButtons(view);
  view.element.addEventListener("keydown", (event) => press(view, event));
  chat.addEventListener("click", (event) => click(view, event));
  chat.addEventListener("pointermove", (event) => view.choice && view.point(at(view, event)));
  document.addEventListener("click", ({ target }) => {
    if (view.counterfactual.running && target.closest("#chat-stop")) view.remember();
    if (target.closest("#chat-box .submit-button")) explain(view);
  });
  document.addEventListener("keydown", ({ key, shiftKey, target }) => {
    if (key === "Enter" && !shiftKey && target.closest("#chat-box")) explain(view);
  });
  let selecting;
  document.addEventListener("selectionchange", () => {
    clearTimeout(selecting);
    selecting = setTimeout(() => select(view), SELECT_MS);
  });
  const changed = new MutationObserver(() => {
    view.text.read();
    view.paint();
  });
  changed.observe(chat, { childList: true, subtree: true, characterData: true });
}

/** Say why a message is not sent, if so. */
function explain(view) {
  if (document.querySelector("#chat-status .running")) view.setStatus(WAIT);
  if (document.querySelector("#chat-box textarea").value.length > LONGEST) view.setStatus(TOO_LONG);
}

function listenToButtons(view) {
  const on = (selector, listener) => view.find(selector).addEventListener("click", listener);
  on("#words-forget", () => view.again(0));
  for (const button of view.element.querySelectorAll(".change"))
    button.addEventListener("click", () => view.again(Number(button.value)));
  on("#words-undo", () => view.remember());
  on("#words-depends", () => view.depends());
  on(".sentence", () => view.choose(whole(view.words, view.choice, "sentence")));
  on(".message", () => view.choose(whole(view.words, view.choice, "message")));
  on(".close", () => view.close());
  on("#words-pick", () => pick(view));
  view.find("#words-fade").hidden = view.find(".scale").hidden = !canPaint;
  const fade = view.find("#words-fade input");
  fade.checked = fades();
  fade.addEventListener("change", () => {
    keepFades(fade.checked);
    view.paint();
  });
}

/** The number of the word at the pointer, or -1. */
function at({ text, words }, { clientX, clientY }) {
  const found = text.at(clientX, clientY);
  return (found && chosen(words, found.message, found.offset, found.offset)?.first) ?? -1;
}

function click(view, event) {
  if (event.target.closest("button, textarea, a") || !getSelection().isCollapsed) return;
  const n = at(view, event);
  const chosenAlready = n >= 0 && view.choice?.first === n && view.choice.stop === n + 1;
  view.choose(n < 0 || chosenAlready ? null : { first: n, stop: n + 1 });
}

function select(view) {
  const selection = getSelection();
  if (selection.isCollapsed || !selection.rangeCount) return;
  const parts = view.text.parts(selection.getRangeAt(0));
  const found = parts.map(({ message, begin, end }) => chosen(view.words, message, begin, end));
  const inside = found.filter(Boolean);
  if (inside.length) view.choose({ first: inside[0].first, stop: inside.at(-1).stop });
}

function pick(view) {
  const stop = view.words.length;
  if (!stop) return;
  go(view, { first: stop - 1, stop });
  view.find("#words-bar").focus();
}

/** Choose words, and scroll to them. */
function go(view, choice) {
  view.choose(choice);
  if (!view.choice) return;
  const { text, words } = view;
  for (const word of [words[choice.first], words[choice.stop - 1]])
    if (text.shows(word)) text.show(text.range(word));
}

function press(view, event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return; // browser shortcuts
  if (event.key === "Escape") {
    if (!view.choice) return view.remember();
    view.close();
    return view.find("#words-pick").focus();
  }
  const step = STEPS[event.key];
  if (step === undefined || !view.choice) return;
  event.preventDefault();
  const { first, stop } = view.choice;
  const last = view.words.length;
  if (event.shiftKey)
    return go(view, { first, stop: Math.min(last, Math.max(first + 1, stop + step)) });
  const n = Math.min(last - 1, Math.max(0, (step > 0 ? stop - 1 : first) + step));
  go(view, { first: n, stop: n + 1 });
}
