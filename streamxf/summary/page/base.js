"use strict";

// Texts of the checkpoint only ever become text nodes and attributes: nothing here parses HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function draw(tag, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return element;
}

// -- numbers ---------------------------------------------------------------------------------------------------------

const fixed = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const count = (value) => value.toLocaleString("en-US");
const many = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

function size(bytes) {
  for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (bytes >= scale) return `${fixed(bytes / scale, 1)} ${unit}`;
  return many(bytes, "byte");
}

const ratioOf = (sums) => (sums.raw ? sums.stored / sums.raw : null);
const ratioText = (ratio) => (ratio === null ? "-" : fixed(ratio, 3));

// -- the tree --------------------------------------------------------------------------------------------------------

// A node has: name, path, parent, children, raw, stored, objects (stored bytes of what is no tensor), tensors, and by its
// kind ("module", "tensor", "object", "rest") dtype, shape, parts, chain. What a treemap shows are sizes, so an object
// counts with its stored bytes whatever the area stands for.
function treeOf(module, parent = null) {
  const node = { kind: "module", name: module.name, parent, children: [], raw: 0, stored: 0, objects: 0, tensors: 0 };
  node.path = pathOf(node);
  for (const child of module.children) node.children.push(treeOf(child, node));
  for (const [name, dtype, shape, raw, stored, parts, chain] of module.items) {
    const item = { kind: dtype < 0 ? "object" : "tensor", name, parent: node, children: [], dtype, shape, parts, chain };
    item.path = pathOf(item);
    Object.assign(item, dtype < 0 ? { raw: 0, stored: 0, objects: stored, tensors: 0 } : { raw, stored, objects: 0, tensors: 1 });
    node.children.push(item);
  }
  if (module.rest) {
    const [items, raw, stored, objects] = module.rest;
    const name = `${count(items)} smaller`;
    node.children.push({ kind: "rest", name, parent: node, children: [], raw, stored, objects, tensors: items, path: `${node.path ? `${node.path}: ` : ""}${name}` });
  }
  for (const child of node.children) for (const sum of ["raw", "stored", "objects", "tensors"]) node[sum] += child[sum];
  return node;
}

function pathOf(node) {
  return node.parent && node.parent.parent !== null ? `${node.parent.path}.${node.name}` : node.name;
}

const weigh = { stored: (node) => node.stored + node.objects, raw: (node) => node.raw + node.objects };
const tensorsOf = (node) => (node.kind === "tensor" ? [node] : node.children.flatMap(tensorsOf));

// -- colours ---------------------------------------------------------------------------------------------------------

// Viridis without its darkest and lightest ends: its lightness rises evenly, so it can be read without telling red from
// green, and in grey.
const RAMP = ["#46327e", "#3f4788", "#365c8d", "#2e6e8e", "#277f8e", "#21918c", "#1fa187", "#2db27d", "#4ac16d", "#73d056", "#a0da39", "#d0e11c"];
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
// A scale is its ends, and whether there is anything below and above them.
const ratioColour = (ratio, [low, high] = DATA.scale) => (ratio === null ? PLAIN : ramp((ratio - low) / (high - low)));
const dtypeColour = (dtype) => (dtype < 0 ? PLAIN : KINDS[dtype % KINDS.length]);

function rampLegend(target, from, to, title) {
  const bar = draw("svg", { width: 180, height: 12, role: "img", "aria-label": `${title}: ${from} to ${to}` });
  for (let step = 0; step < 60; step += 1)
    bar.append(draw("rect", { x: step * 3, y: 0, width: 3.5, height: 12, fill: ramp(step / 59) }));
  target.replaceChildren(make("span", {}, title), make("span", { class: "key" }, from, bar, to));
}

const scaleEnds = ([low, high, below, above]) => [`${below ? "≤ " : ""}${fixed(low, 2)}`, `${above ? "≥ " : ""}${fixed(high, 2)}`];

// -- what several parts of the page use ------------------------------------------------------------------------------

function choice(target, name, options, chosen, changed) {
  for (const [value, label] of options) {
    const input = make("input", { type: "radio", name, value });
    input.checked = value === chosen;
    input.addEventListener("change", () => changed(value));
    target.append(make("label", {}, input, label));
  }
}

const tip = byId("tip");

function showTip(title, facts, x, y) {
  const list = make("dl");
  for (const [label, value] of facts) list.append(make("dt", {}, label), make("dd", {}, value));
  tip.replaceChildren(make("b", {}, title), list);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const [right, bottom] = [x + 14 + width > innerWidth, y + 16 + height > innerHeight];
  tip.style.left = `${Math.max(6, right ? x - width - 12 : x + 14)}px`;
  tip.style.top = `${Math.max(6, bottom ? y - height - 12 : y + 16)}px`;
}

const hideTip = () => (tip.hidden = true);

// Marks are reached by the keyboard as one stop; arrows go from there to the nearest mark in their direction.
function tipped(mark, title, facts) {
  mark.setAttribute("aria-label", `${title}: ${facts.map(([label, value]) => `${label} ${value}`).join(", ")}`);
  mark.addEventListener("pointermove", (event) => showTip(title, facts, event.clientX, event.clientY));
  mark.addEventListener("pointerleave", hideTip);
  mark.addEventListener("blur", hideTip);
  mark.addEventListener("focus", () => {
    const box = mark.getBoundingClientRect();
    if (mark.matches(":focus-visible")) showTip(title, facts, box.x + box.width / 2, box.y + box.height / 2);
  });
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function walkable(svg, selector) {
  const first = svg.querySelector(selector);
  if (first) first.setAttribute("tabindex", 0);
  svg.addEventListener("keydown", (event) => {
    const step = ARROWS[event.key];
    const from = event.target.closest(selector);
    if (!step || !from) return;
    event.preventDefault();
    const middle = (box) => [box.x + box.width / 2, box.y + box.height / 2];
    const here = middle(from.getBoundingClientRect());
    let [best, least] = [null, Infinity];
    for (const mark of svg.querySelectorAll(selector)) {
      const there = middle(mark.getBoundingClientRect());
      const along = (there[0] - here[0]) * step[0] + (there[1] - here[1]) * step[1];
      const aside = Math.abs((there[0] - here[0]) * step[1]) + Math.abs((there[1] - here[1]) * step[0]);
      if (mark !== from && along > 0.5 && along + 2.5 * aside < least) [best, least] = [mark, along + 2.5 * aside];
    }
    if (!best) return;
    from.setAttribute("tabindex", -1);
    best.setAttribute("tabindex", 0);
    best.focus();
  });
}

const dark = matchMedia("(prefers-color-scheme: dark)");

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
}

byId("theme").addEventListener("click", () =>
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
setTheme(dark.matches ? "dark" : "light");

const ROOT = treeOf(DATA.tree);
// Where nothing was compressed, ratios say nothing.
const COMPRESSED = ratioOf(ROOT) !== null && ratioOf(ROOT) < 0.99;
