// How many half-lives of which length the shown layer had.
let tally = null;

function histogram() { // counts of the codes; codes are a logarithmic scale of half-lives
  const { data, length } = stores[layer], channels = run.channels;
  if (tally?.store !== stores[layer]) tally = { store: stores[layer], seen: 0, counts: new Uint32Array(LEVELS) };
  for (; tally.seen < length; tally.seen++)
    for (let i = 0, at = tally.seen * 2 * channels; i < channels; i++) tally.counts[data[at + i]]++;
  const { width, height } = sizes.get(chart), base = height - 16, bars = 64, context = surface(chart);
  context.clearRect(0, 0, width, height);
  const sums = Array.from({ length: bars }, (_, i) => tally.counts.subarray(i * 4, i * 4 + 4).reduce((a, b) => a + b));
  const top = Math.max(...sums, 1);
  sums.forEach((sum, i) => {
    context.fillStyle = css(halves[Math.min(190, Math.max(90, i * 4 + 2))]); // a page may hide the ends
    const tall = (sum / top) * (base - 4);
    context.fillRect(width - ((i + 1) * width) / bars, base - tall, width / bars - 1, tall);
  });
  context.fillStyle = ink;
  context.font = "10px system-ui, sans-serif";
  context.textAlign = "center";
  context.globalAlpha = 0.7;
  context.fillRect(0, base, width, 1);
  for (const [life, name] of [[0.1, "0.1"], [1, "1"], [10, "10"], [100, "100"], [1e3, "1k"], [1e4, "10k"], [1e5, "100k"]]) {
    const code = ((Math.log(Math.LN2 / life) - props.low) / (props.high - props.low)) * 255;
    const x = width * (1 - code / 255);
    context.fillRect(x, base, 1, 4);
    context.fillText(name, x, height - 2);
  }
}
