/** Losses of a word's log probability, in nats, without units of the text: `[first, stop]` words. */

/** The unit with the largest loss, if any loss is positive. */
export function strongest({ units, losses }) {
  const loss = Math.max(...losses);
  if (!(loss > 0)) return null;
  const [first, stop] = units[losses.indexOf(loss)];
  return { first, stop, loss };
}

/** How much less likely a word is by a loss in nats. */
export function likelihood(nats) {
  if (Math.abs(nats) < 0.05) return "as likely as with it";
  const times = Math.exp(Math.abs(nats));
  const end = `times ${nats > 0 ? "less" : "more"} likely`;
  if (times > 1e6) return `more than a million ${end}`;
  if (times < 10) return `${times.toFixed(1)} ${end}`;
  return `${Number(times.toPrecision(2)).toLocaleString("en")} ${end}`;
}
