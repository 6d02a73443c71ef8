// The live view of a run: it asks the server for new columns, paints each of them once into a
// picture of one pixel a token and channel, and shows that picture scaled. `element`, `props`,
// `server` and `watch` come from gr.HTML. What a model wrote is only ever set as textContent.
const find = (name) => element.querySelector("." + name);
const text = find("text"), scroll = find("scroll"), tip = find("tip");
const canvases = ["magnitude", "phase", "layers"].map(find), chart = find("histogram"), sizes = new Map();
const [magnitudeCanvas, phaseCanvas, layersCanvas] = canvases;
const EVERY_MS = 85; // from a question to the next one: some 11 redraws a second
const PATIENCE_MS = 4000; // the longest pause between questions without an answer, some 10 s after the first

// ---- state of the view -------------------------------------------------------------------------
let run, stores, averages, pieces, resets, spans, selected, layer = 0, order, pictures, done, asking = 0, scheduled = false, row = null, full = false;
let painted = null, ink = "", following = true; // following: the text is scrolled to its end
const view = { draws: 0, get have() { return stores[layer]?.length ?? 0; }, get layer() { return layer; }, get run() { return run.run; },
  get done() { return done; }, get pieces() { return pieces; }, get row() { return row; }, get pictures() { return pictures; },
  get resets() { return [...resets[layer]]; }, get order() { return order; }, show };
find("gl").view = view;

function start(value) {
  run = value;
  asking++; // answers to older questions no longer count
  stores = Array.from({ length: run.layers }, () => new Store(2 * run.channels));
  averages = new Store(run.layers);
  resets = Array.from({ length: run.layers }, () => new Set());
  pieces = []; spans = []; selected = row = null; done = !run.run; full = false; following = true;
  layer = Math.min(layer, run.layers - 1);
  text.textContent = tip.textContent = find("count").textContent = "";
  find("candidates").textContent = "";
  find("place").textContent = find("memory").textContent = "click a token in the text";
  const picker = find("layer");
  if (picker.length !== run.layers)
    picker.replaceChildren(...Array.from({ length: run.layers }, (_, i) => new Option(String(i + 1), String(i))));
  picker.value = String(layer);
  repaint();
  if (run.run) poll(asking);
}

async function poll(mine) {
  let pause = EVERY_MS;
  while (mine === asking) {
    const began = performance.now();
    const answer = await server.columns([run.run, layer, view.have, pieces.length]).catch(() => null);
    if (mine !== asking) return;
    if (answer) { pause = EVERY_MS; take(answer); } // a busy server or a lost connection give none
    else if ((pause *= 1.5) > PATIENCE_MS) { done = true; tip.textContent = "The server no longer has this run."; return; }
    if (done && view.have >= pieces.length) return;
    await new Promise((wake) => setTimeout(wake, pause - (performance.now() - began)));
  }
}

function take(answer) {
  stores[answer.layer].append(answer.start, bytes(answer.columns));
  averages.append(answer.known, bytes(answer.averages));
  answer.pieces.forEach((piece, i) => { pieces[answer.known + i] = piece; });
  if (answer.done && pieces.length) complete(answer.last);
  if (answer.resets) mark(answer.layer, answer.resets);
  schedule(answer.done && !done);
  done = answer.done;
  full = answer.full;
}

// ---- the pointer --------------------------------------------------------------------------------
function cell(event) {
  const canvas = event.currentTarget, box = canvas.getBoundingClientRect(), { perToken, first } = scale();
  const rows = canvas === layersCanvas ? run.layers : run.channels;
  const at = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
  return { token: Math.floor(first + (event.clientX - box.left) / perToken), at };
}

function hover(event) {
  const { token, at } = cell(event), { data, length } = stores[layer];
  const word = `token ${token} ${JSON.stringify(pieces[token]?.text ?? "")}`;
  if (event.currentTarget === layersCanvas) {
    tip.textContent = token < averages.length
      ? `${word} · layer ${at + 1} · mean |a| ${(averages.data[token * run.layers + at] / 255).toFixed(3)}` : "";
  } else if (token >= 0 && token < length) {
    const channel = order[at], own = data[token * 2 * run.channels + channel], turn = data[(token * 2 + 1) * run.channels + channel];
    tip.textContent = `${word} · channel ${channel} · |a| ${Math.exp(-decay(own)).toFixed(4)} · half-life ${tokens(halfLife(own))} tokens · phase ${angle(turn).toFixed(0)}°`;
  } else tip.textContent = "";
}

// ---- events --------------------------------------------------------------------------------------
function change(to) {
  layer = to;
  find("layer").value = String(to);
  row = null;
  repaint();
  showMarks();
  if (run.run) { poll(++asking); if (selected !== null) select(selected); }
}

function move(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return; // the browser's own
  const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
  const zoom = { "+": 1, "=": 1, "-": -1 }[event.key];
  if (step === undefined && zoom === undefined) return;
  event.preventDefault();
  if (zoom) { find("zoom").value = String(Number(find("zoom").value) + zoom); show(); }
  else select(Math.min(pieces.length - 1, Math.max(0, (selected ?? pieces.length - 1) + step)));
}

function save(url, name) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}

function png() {
  const ratio = window.devicePixelRatio || 1, gap = 8 * ratio;
  const sheet = document.createElement("canvas");
  sheet.width = magnitudeCanvas.width;
  sheet.height = canvases.reduce((sum, canvas) => sum + canvas.height + gap, -gap);
  const context = sheet.getContext("2d");
  let top = 0;
  for (const canvas of canvases) { context.drawImage(canvas, 0, top); top += canvas.height + gap; }
  sheet.toBlob((blob) => { const url = URL.createObjectURL(blob); save(url, `layer-${layer + 1}.png`); setTimeout(() => URL.revokeObjectURL(url), 1e4); });
}

async function npz() {
  const url = run.run && (await server.arrays([run.run]).catch(() => null));
  if (url) save(url, "transitions.npz");
  else tip.textContent = "There is nothing to download yet.";
}

for (const [name, colours] of [["half", mean], ["turn", phases], ["mean", mean]]) {
  const canvas = find(name), context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    context.fillStyle = css(colours[Math.round((x / (canvas.width - 1)) * 255)]);
    context.fillRect(x, 0, 1, canvas.height);
  }
}
find("layer").addEventListener("change", (event) => change(Number(event.target.value)));
find("order").addEventListener("change", repaint);
find("zoom").addEventListener("input", () => show());
find("png").addEventListener("click", png);
find("npz").addEventListener("click", npz);
scroll.addEventListener("scroll", () => show());
for (const canvas of canvases) {
  canvas.addEventListener("mousemove", hover);
  canvas.addEventListener("mouseleave", () => { tip.textContent = ""; });
  canvas.addEventListener("click", (event) => {
    const { token, at } = cell(event);
    if (canvas === layersCanvas && at !== layer) change(at);
    select(token);
  });
}
magnitudeCanvas.addEventListener("keydown", move);
text.addEventListener("keydown", move);
text.addEventListener("click", (event) => {
  const span = event.target.closest("span[data-token]");
  if (span) select(Number(span.dataset.token));
});
text.addEventListener("scroll", () => { following = text.scrollTop + text.clientHeight >= text.scrollHeight - 8; });
new ResizeObserver(measure).observe(scroll);
new MutationObserver(measure).observe(document.body, { attributeFilter: ["class"] }); // dark mode
// an empty view keeps the layers of the one before it, and so the choice among them
const wanted = () => (props.value?.run ? props.value : { layers: 1, channels: 1, ...run, run: null });
watch("value", () => { if (wanted().run !== run.run) start(wanted()); });
measure();
start(wanted());
