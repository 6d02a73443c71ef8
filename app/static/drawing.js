// The pictures: what is new is painted, all of it where the scale or a mark has changed.
function repaint() {
  pictures = [run.channels, run.channels, run.layers].map((height) => new Picture(height));
  order = Array.from({ length: run.channels }, (_, channel) => channel);
  if (find("order").value === "sorted") sort();
  schedule(true);
}

function sort() { // longest half-life, in the mean over what was seen, on top
  const { data, length } = stores[layer], sums = new Float64Array(run.channels);
  for (let token = 0; token < length; token++)
    for (let channel = 0; channel < run.channels; channel++) sums[channel] += data[token * 2 * run.channels + channel];
  order.sort((a, b) => sums[a] - sums[b] || a - b);
  order.tokens = length;
}

function schedule(all) {
  if (all === true) painted = null;
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
  show(false);
  write();
  histogram();
  find("count").textContent = pieces.length ? `${pieces.length.toLocaleString("en")} tokens${full ? ", no room for more" : ""}` : "";
  view.draws++;
}

/** Sizes and colours, asked for when they change: each question would cost a frame one more layout. */
function measure() {
  find("stack").style.width = `${scroll.clientWidth}px`;
  for (const canvas of [...canvases, chart]) sizes.set(canvas, { width: canvas.clientWidth, height: canvas.clientHeight });
  ink = getComputedStyle(element).color;
  schedule(true);
}

/** The context of a canvas in CSS pixels; it has as many as the screen. */
function surface(canvas) {
  const ratio = window.devicePixelRatio || 1, { width, height } = sizes.get(canvas);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** CSS pixels a token, and the first token shown; while a run grows, its scale changes in steps. */
function scale() {
  const zoom = Number(find("zoom").value), count = Math.max(pieces.length, 1), { width } = sizes.get(magnitudeCanvas);
  if (!zoom) {
    const room = done ? count : 48 * 1.3 ** Math.ceil(Math.log(Math.max(count / 48, 1)) / Math.log(1.3));
    find("wide").style.width = "0";
    return { perToken: Math.min(16, width / room), first: 0 };
  }
  const atEnd = scroll.scrollLeft + width >= find("wide").clientWidth - 4;
  find("wide").style.width = `${Math.max(width, Math.ceil(zoom * count))}px`;
  if (atEnd && !done) scroll.scrollLeft = zoom * count;
  return { perToken: zoom, first: scroll.scrollLeft / zoom };
}

/** Paint all that is in sight, or only what came since, where nothing else has changed. */
function show(all = true) {
  const { perToken, first } = scale(), until = pictures[0].done;
  const grows = !all && painted && painted.perToken === perToken && painted.first === first;
  const from = grows ? Math.max(first, painted.until - 2) : first; // scaled edges are blended
  pictures.forEach((picture, i) => {
    const context = surface(canvases[i]), { width, height } = sizes.get(canvases[i]);
    const shown = Math.min(picture.done - from, first + width / perToken - from), left = (from - first) * perToken;
    if (!grows) context.clearRect(0, 0, width, height);
    if (picture.done <= first) {
      context.fillStyle = "#999"; context.font = "12px system-ui, sans-serif";
      context.textAlign = "center";
      if (i === 0) context.fillText("every token will add a column", width / 2, height / 2);
      return;
    }
    if (!(shown > 0)) return; // a page that is not in sight has no width
    context.imageSmoothingEnabled = perToken < 1 || height < picture.canvas.height;
    context.drawImage(picture.canvas, from, 0, shown, picture.canvas.height, left, 0, shown * perToken, height);
    if (i === 2) line(context, perToken, first, from, shown, height);
    if (i === 0) {
      context.fillStyle = "#ff4d4f";
      for (const token of resets[layer]) if (token >= from) context.fillRect((token - first) * perToken, 0, Math.max(perToken, 2), 5);
    }
    if (selected !== null && selected >= from - 1) {
      context.strokeStyle = "#fff";
      context.lineWidth = 1;
      context.strokeRect((selected - first) * perToken - 0.5, 0.5, Math.max(perToken, 2) + 1, height - 1);
    }
  });
  painted = until > first ? { perToken, first, until } : null;
}

function line(context, perToken, first, from, shown, height) {
  context.beginPath();
  for (let token = Math.floor(from); token < from + shown; token++) {
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

