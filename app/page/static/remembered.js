// The text of the tokens, and what is left of each one at the token that was clicked.
function write() {
  const news = document.createDocumentFragment();
  if (spans.length === pieces.length) return;
  for (let i = spans.length; i < pieces.length; i++) {
    const span = document.createElement("span");
    span.textContent = pieces[i].text;
    span.dataset.token = i;
    span.className = pieces[i].prompt ? "prompt" : "";
    span.classList.toggle("reset", resets[layer].has(i));
    spans.push(span);
    news.append(span);
  }
  text.append(news);
  if (following) text.scrollTop = 1e9;
}

function complete(last) { // the end of a run may complete the last token's text
  const token = pieces.length - 1;
  pieces[token].text = last;
  if (spans[token]) spans[token].textContent = last;
}

function mark(of, found) {
  const now = new Set(found), before = resets[of];
  if (now.size === before.size && found.every((token) => before.has(token))) return;
  resets[of] = now;
  if (of === layer) showMarks();
}

function showMarks() {
  spans.forEach((span, i) => span.classList.toggle("reset", resets[layer].has(i)));
  schedule(true);
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

