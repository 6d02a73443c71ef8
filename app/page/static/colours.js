// Colours, and the codes in which the server sends magnitude and phase.
const LEVELS = 256;
const MAGMA = "000004 1d1147 51127c 832681 b73779 e75263 fc8961 fec488 fcfdbf";
const TWILIGHT = "e2d9e2 b3c6ce 7ba1c2 6276ba 5e43a5 4e186f 2f1436 581647 8e2c50 b25652 c6896c d4bcac e2d9e2";

function palette(stops) {
  const rgb = stops.split(" ").map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return Uint32Array.from({ length: LEVELS }, (_, level) => {
    const place = (level / (LEVELS - 1)) * (rgb.length - 1);
    const low = Math.min(Math.floor(place), rgb.length - 2);
    const [r, g, b] = [0, 1, 2].map((i) => rgb[low][i] + (rgb[low + 1][i] - rgb[low][i]) * (place - low));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}
const mean = palette(MAGMA), phases = palette(TWILIGHT);
const css = (colour) => `rgb(${colour & 255},${(colour >> 8) & 255},${(colour >> 16) & 255})`;

// ---- codes: log(-log|a|) and the phase in 8 bits -----------------------------------------------
const decay = (code) => Math.exp(props.low + (code / 255) * (props.high - props.low));
const halfLife = (code) => Math.LN2 / decay(code);
const DECADES = [-1, 4]; // of tokens, that the colours of half-lives span
const halves = Uint32Array.from({ length: LEVELS }, (_, code) => {
  const share = (Math.log10(halfLife(code)) - DECADES[0]) / (DECADES[1] - DECADES[0]);
  return mean[Math.round(255 * Math.min(1, Math.max(0, share)))];
});
const angle = (code) => (code / 255) * 360 - 180;
const tokens = (life) => (life < 10 ? life.toFixed(2) : life < 100 ? life.toFixed(1) : Math.round(life).toLocaleString("en"));

function bytes(base64) {
  const raw = atob(base64), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}
