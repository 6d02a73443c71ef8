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
  const whole = done && length >= pieces.length;
  if (length >= 2 * order.tokens + 8 || (whole && length > order.tokens)) return repaint(); // sorts anew
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
  const contexts = canvases.map(surface), { perToken, first } = scale(), until = pictures[0].done;
  const ratio = contexts[0].getTransform().a, backing = canvases.map(({ width, height }) => [width, height]);
  const looks = [perToken, first, ratio, backing].join();
  const back = 2 + Math.ceil(3 / perToken); // tokens: edges and marks reach into their neighbours
  const from = !all && painted?.looks === looks ? painted.until - back : first;
  const since = Math.max(0, Math.floor((from - first) * perToken * ratio) / ratio); // no pixel is halved
  contexts.forEach((context, i) => {
    const { width, height } = sizes.get(canvases[i]), left = i === 2 ? 0 : since; // a line has no parts
    context.save();
    context.beginPath();
    context.rect(left, 0, Math.max(0, width - left), height);
    context.clip();
    context.clearRect(0, 0, width, height);
    if (until > first) tokensOf(context, i, { perToken, first, left, width, height });
    else if (i === 0) {
      context.fillStyle = "#999"; context.font = "12px system-ui, sans-serif";
      context.textAlign = "center";
      context.fillText("every token will add a column", width / 2, height / 2);
    }
    context.restore();
  });
  painted = until > first ? { looks, until } : null;
}

/** Paints a picture with its marks; what lies left of `left` is clipped. */
function tokensOf(context, i, { perToken, first, left, width, height }) {
  const { canvas, done: until } = pictures[i], shown = Math.min(until - first, width / perToken);
  if (!(shown > 0)) return; // a page that is not in sight has no width
  const place = (token) => (token - first) * perToken, wide = Math.max(perToken, 2);
  context.imageSmoothingEnabled = perToken < 1 || height < canvas.height;
  context.drawImage(canvas, first, 0, shown, canvas.height, 0, 0, shown * perToken, height);
  if (i === 2) line(context, place, Math.floor(first), first + shown, height);
  if (i === 0) {
    context.fillStyle = "#ff4d4f";
    for (const token of resets[layer]) if (token < until && place(token) + wide > left) context.fillRect(place(token), 0, wide, 5);
  }
  if (selected === null) return;
  context.strokeStyle = "#fff";
  context.lineWidth = 1;
  context.strokeRect(place(selected) - 0.5, 0.5, wide + 1, height - 1);
}

function line(context, place, from, until, height) {
  context.beginPath();
  context.lineJoin = "round";
  for (let token = from; token < until; token++) {
    let sum = 0;
    for (let i = 0; i < run.layers; i++) sum += averages.data[token * run.layers + i];
    context.lineTo(place(token + 0.5), 3 + (height - 6) * (1 - sum / run.layers / 255));
  }
  for (const [colour, width] of [["#000a", 3.5], ["#7df9ff", 1.5]]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke();
  }
}
