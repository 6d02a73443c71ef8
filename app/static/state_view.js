// The live view of a run: it asks the server for new columns, paints each of them once into a
// picture of one pixel a token and channel, and shows that picture scaled. `element`, `props`,
// `server` and `watch` come from gr.HTML. What a model wrote is only ever set as textContent.
const find = (name) => element.querySelector("." + name);
const text = find("text"), scroll = find("scroll"), tip = find("tip");
const canvases = ["magnitude", "phase", "layers"].map(find);
const [magnitudeCanvas, phaseCanvas, layersCanvas] = canvases;
const GAP_MS = 65; // between an answer and the next question: some 12 redraws a second
const EMPTY = { run: null, layers: 1, channels: 1 };

// ---- state of the view -------------------------------------------------------------------------
let run, stores, averages, pieces, resets, spans, selected, layer = 0, order, pictures, done, asking = 0, scheduled = false, row = null;
const view = { draws: 0, get have() { return stores[layer]?.length ?? 0; }, get layer() { return layer; }, get run() { return run.run; },
  get done() { return done; }, get pieces() { return pieces; }, get row() { return row; }, get pictures() { return pictures; },
  get resets() { return [...resets]; }, get order() { return order; } };
find("gl").view = view;

function start(value) {
  run = value;
  asking++; // answers to older questions no longer count
  stores = Array.from({ length: run.layers }, () => new Store(2 * run.channels));
  averages = new Store(run.layers);
  pieces = []; resets = new Set(); spans = []; selected = row = null; done = !run.run;
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
  let failures = 0;
  while (mine === asking) {
    const answer = await server.columns([run.run, layer, view.have, pieces.length]).catch(() => null);
    if (mine !== asking) return;
    if (answer) { failures = 0; take(answer); }
    else if (++failures > 5) { done = true; tip.textContent = "The server no longer has this run."; return; }
    if (done && view.have >= pieces.length) return;
    await new Promise((wake) => setTimeout(wake, GAP_MS));
  }
}

function take(answer) {
  stores[answer.layer].append(answer.start, bytes(answer.columns));
  averages.append(answer.known, bytes(answer.averages));
  answer.pieces.forEach((piece, i) => { pieces[answer.known + i] = piece; });
  if (answer.resets && answer.layer === layer) mark(answer.resets);
  done = answer.done;
  schedule();
}

// ---- drawing -------------------------------------------------------------------------------------
function repaint() {
  pictures = [run.channels, run.channels, run.layers].map((height) => new Picture(height));
  order = Array.from({ length: run.channels }, (_, channel) => channel);
  if (find("order").value === "sorted") sort();
  schedule();
}

function sort() { // longest half-life, in the mean over what was seen, on top
  const { data, length } = stores[layer], sums = new Float64Array(run.channels);
  for (let token = 0; token < length; token++)
    for (let channel = 0; channel < run.channels; channel++) sums[channel] += data[token * 2 * run.channels + channel];
  order.sort((a, b) => sums[a] - sums[b] || a - b);
  order.tokens = length;
}

function schedule() {
  if (!scheduled) { scheduled = true; requestAnimationFrame(draw); }
}

function draw() {
  scheduled = false;
  const { data, length } = stores[layer], channels = run.channels;
  if (order.tokens !== undefined && length >= 2 * order.tokens + 8) return repaint();
  const [magnitude, phase, layers] = pictures;
  magnitude.paint(length, (token, i) => halves[data[token * 2 * channels + order[i]]]);
  phase.paint(length, (token, i) => phases[data[(token * 2 + 1) * channels + order[i]]]);
  layers.paint(averages.length, (token, i) => mean[averages.data[token * run.layers + i]]);
  show();
  write();
  histogram();
  find("count").textContent = pieces.length ? `${pieces.length.toLocaleString("en")} tokens` : "";
  view.draws++;
}

/** Pixels of a canvas as the screen has them, and its context in CSS pixels. */
function surface(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

function scale() { // CSS pixels a token, and the first token shown
  const width = scroll.clientWidth, zoom = Number(find("zoom").value), count = pieces.length;
  const perToken = zoom || Math.min(16, width / Math.max(count, 1));
  const wide = perToken * count, atEnd = scroll.scrollLeft + width >= find("wide").clientWidth - 4;
  find("wide").style.width = `${Math.max(width, Math.ceil(wide))}px`;
  find("stack").style.width = `${width}px`;
  if (atEnd && !done) scroll.scrollLeft = wide;
  return { perToken, first: zoom ? scroll.scrollLeft / perToken : 0 };
}

function show() {
  const { perToken, first } = scale();
  pictures.forEach((picture, i) => {
    const { context, width, height } = surface(canvases[i]);
    const shown = Math.min(picture.done - first, width / perToken);
    if (shown <= 0) {
      context.fillStyle = "#999"; context.font = "12px system-ui, sans-serif";
      context.textAlign = "center";
      if (i === 0) context.fillText("every token will add a column", width / 2, height / 2);
      return;
    }
    context.imageSmoothingEnabled = perToken < 1 || height < picture.canvas.height;
    context.drawImage(picture.canvas, first, 0, shown, picture.canvas.height, 0, 0, shown * perToken, height);
    if (i === 2) line(context, perToken, first, shown, height);
    if (i === 0) {
      context.fillStyle = "#ff4d4f";
      for (const token of resets) context.fillRect((token - first) * perToken, 0, Math.max(perToken, 2), 5);
    }
    if (selected !== null) {
      context.strokeStyle = "#fff";
      context.lineWidth = 1;
      context.strokeRect((selected - first) * perToken - 0.5, 0.5, Math.max(perToken, 2) + 1, height - 1);
    }
  });
}

function line(context, perToken, first, shown, height) {
  context.beginPath();
  for (let token = Math.floor(first); token < first + shown; token++) {
    let sum = 0;
    for (let i = 0; i < run.layers; i++) sum += averages.data[token * run.layers + i];
    context.lineTo((token + 0.5 - first) * perToken, 3 + (height - 6) * (1 - sum / run.layers / 255));
  }
  for (const [colour, width] of [["#000a", 3.5], ["#7df9ff", 1.5]]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke();
  }
}

// ---- the text ----------------------------------------------------------------------------------
function write() {
  const news = document.createDocumentFragment();
  const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
  for (let i = spans.length; i < pieces.length; i++) {
    const span = document.createElement("span");
    span.textContent = pieces[i].text;
    span.dataset.token = i;
    span.className = pieces[i].prompt ? "prompt" : "";
    span.classList.toggle("reset", resets.has(i));
    spans.push(span);
    news.append(span);
  }
  text.append(news);
  if (atEnd) text.scrollTop = text.scrollHeight;
}

function mark(found) {
  resets = new Set(found);
  spans.forEach((span, i) => span.classList.toggle("reset", resets.has(i)));
}

async function select(token) {
  if (!run.run || !(token >= 0 && token < pieces.length)) return;
  const mine = asking, of = layer;
  spans[selected]?.classList.remove("selected");
  selected = token;
  spans[token]?.classList.add("selected");
  spans[token]?.scrollIntoView({ block: "nearest" });
  show();
  const answer = await server.row([run.run, of, token]).catch(() => null);
  if (!answer || mine !== asking || token !== selected || of !== layer) return;
  row = answer;
  const most = Math.max(...row.full.map(Math.abs), 1e-9);
  spans.forEach((span, i) => {
    const kept = i < row.magnitude.length ? row.magnitude[i] : 0, full = (row.full[i] ?? 0) / most;
    span.style.background = kept ? `rgba(252,137,97,${(0.75 * kept).toFixed(3)})` : "";
    span.style.setProperty("--full", full ? `rgba(${full > 0 ? "18,165,148" : "142,78,198"},${Math.abs(full).toFixed(3)})` : "transparent");
    span.title = kept ? `kept ${(100 * kept).toFixed(1)}%, Re(q Πa k) ${row.full[i].toPrecision(3)}` : "";
  });
  find("memory").textContent = `in layer ${of + 1} when ${JSON.stringify(pieces[token].text)} (token ${token}) was read`;
  find("place").textContent = row.candidates.length ? `token ${token}` : "a token that was given, not drawn";
  find("candidates").replaceChildren(...row.candidates.map(([word, chance]) => {
    const item = document.createElement("li"), bar = document.createElement("i"), name = document.createElement("span"), number = document.createElement("span");
    bar.style.width = `${100 * chance}%`;
    name.textContent = JSON.stringify(word);
    number.textContent = `${(100 * chance).toFixed(1)}%`;
    item.className = word === pieces[token].text ? "taken" : "";
    item.append(bar, name, number);
    return item;
  }));
}

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
  if (run.run) { poll(++asking); if (selected !== null) select(selected); }
}

function move(event) {
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
find("zoom").addEventListener("input", show);
find("png").addEventListener("click", png);
find("npz").addEventListener("click", npz);
scroll.addEventListener("scroll", show);
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
new ResizeObserver(schedule).observe(scroll);
new MutationObserver(schedule).observe(document.body, { attributeFilter: ["class"] }); // dark mode
const wanted = () => (props.value?.run ? props.value : EMPTY);
watch("value", () => { if (wanted().run !== run.run) start(wanted()); });
start(wanted());
