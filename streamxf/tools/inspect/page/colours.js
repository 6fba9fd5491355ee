// What colours stand for. One ratio has one colour on the whole page.

// Viridis without its darkest and lightest ends: its lightness rises evenly, so it can be read without telling red from
// green, and in grey.
const RAMP = ["#46327e", "#3f4788", "#365c8d", "#2e6e8e", "#277f8e", "#21918c", "#1fa187", "#2db27d", "#4ac16d", "#73d056", "#a0da39", "#d0e11c"];
// Ratios beyond the scale have colours outside of the ramp, and stripes.
const BELOW = "#6d28d9";
const ABOVE = "#f59e0b";
// Okabe and Ito's, which people with any kind of colour blindness tell apart.
const KINDS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7a5195"];
const PLAIN = "#9aa3b0"; // what has no ratio or no dtype

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function ramp(part) {
  const place = Math.min(Math.max(part, 0), 1) * (RAMP.length - 1);
  const index = Math.min(Math.floor(place), RAMP.length - 2);
  const [from, to] = [channels(RAMP[index]), channels(RAMP[index + 1])];
  return `#${from.map((value, at) => Math.round(value + (to[at] - value) * (place - index)).toString(16).padStart(2, "0")).join("")}`;
}

function luminance(hex) {
  const [red, green, blue] = channels(hex).map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

const inkOn = (hex) => ((luminance(hex) + 0.05) ** 2 > 1.05 * 0.05 ? "#000000" : "#ffffff");
const dtypeColour = (dtype) => (dtype < 0 ? PLAIN : KINDS[dtype % KINDS.length]);

function ratioColour(ratio) {
  if (ratio === null) return PLAIN;
  const [low, high] = DATA.scale;
  return ratio < low ? BELOW : ratio > high ? ABOVE : ramp((ratio - low) / (high - low));
}

// Stripes over a mark that stands for a ratio beyond the scale.
function stripesOf(fill, box, rounding = 0) {
  const name = { [BELOW]: "below", [ABOVE]: "above" }[fill];
  return name ? [draw("rect", { class: "stripes", ...box, rx: rounding, fill: `url(#${name})` })] : [];
}

// Ids of patterns are global to the document, so one empty SVG holds them for all others.
function drawPatterns() {
  const svg = draw("svg", { width: 0, height: 0, "aria-hidden": "true" });
  for (const [id, colour] of [["below", "#000000"], ["above", "#ffffff"]]) {
    const pattern = draw("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    pattern.append(draw("rect", { width: 2, height: 6, fill: colour, opacity: 0.3 }));
    svg.append(pattern);
  }
  document.body.append(svg);
}

drawPatterns();

// -- legends ---------------------------------------------------------------------------------------------------------

function key(label, colour, kind = "") {
  const patch = make("i", { class: kind });
  if (colour) patch.style.backgroundColor = colour;
  return make("span", { class: "key" }, patch, label);
}

function rampKey(from, to, title) {
  const bar = draw("svg", { width: 140, height: 12, role: "img", "aria-label": `${title}: ${from} to ${to}` });
  for (let step = 0; step < 56; step += 1)
    bar.append(draw("rect", { x: step * 2.5, y: 0, width: 3, height: 12, fill: ramp(step / 55) }));
  return make("span", { class: "key" }, from, bar, to);
}

// The scale of ratios, with keys for what lies beyond it, if any of the given ratios do.
function ratioLegend(ratios) {
  const [low, high] = DATA.scale.map((end) => fixed(end, 2));
  const fills = new Set(ratios.map(ratioColour));
  return [
    make("span", {}, "Stored / in memory"),
    ...(fills.has(BELOW) ? [key(`below ${low}`, BELOW, "under")] : []),
    rampKey(low, high, "Stored / in memory"),
    ...(fills.has(ABOVE) ? [key(`above ${high}`, ABOVE, "over")] : []),
  ];
}

const flagKeys = ({ broken, zeros }) => [
  ...(broken ? [key("NaN or Inf", null, "broken")] : []),
  ...(zeros ? [key("all zeros", null, "zeros")] : []),
];

// A frame inside a mark for tensors with NaN or infinities, or of nothing but zeros.
function frameOf({ broken, zeros, tensors }, { x, y, w, h }, fill) {
  const kind = broken ? "broken" : zeros && zeros === tensors ? "zeros" : null;
  const inset = Math.min(3, w / 4, h / 4);
  if (!kind) return [];
  const frame = draw("rect", { class: `frame ${kind}`, x: x + inset, y: y + inset, width: w - 2 * inset, height: h - 2 * inset });
  if (kind === "zeros") frame.setAttribute("stroke", inkOn(fill));
  return [frame];
}
