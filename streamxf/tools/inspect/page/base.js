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

// A size in a few characters, for narrow cells.
function shortSize(bytes) {
  for (const [unit, scale] of [["G", 2 ** 30], ["M", 2 ** 20], ["K", 2 ** 10]])
    if (bytes >= scale) return `${fixed(bytes / scale, bytes < 10 * scale ? 1 : 0)}${unit}`;
  return count(bytes);
}

function figure(value, digits = 3) {
  if (value === null) return "-";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (Number.isInteger(value) && size < 1e7) return count(value);
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(digits))) : value.toExponential(digits > 1 ? 1 : 0).replace("e+", "e");
}

function percent(part, whole) {
  if (!whole) return "-";
  if (part === 0 || part === whole) return part ? "100 %" : "0 %";
  const share = (100 * part) / whole;
  return share < 0.05 ? "< 0.1 %" : share > 99.95 ? "> 99.9 %" : `${fixed(share, 1)} %`;
}

const ratioOf = (sums) => (sums.raw ? sums.stored / sums.raw : null);
const ratioText = (ratio) => (ratio === null ? "-" : fixed(ratio, 3));

// -- the tree --------------------------------------------------------------------------------------------------------

// A node has: name, path, parent, children, raw, stored, objects (stored bytes of what is no tensor), tensors, broken
// (those with a NaN or an infinity), zeros (those of nothing but zeros), and by its kind ("module", "tensor", "object",
// "rest") dtype, shape, parts, chain, values. What a treemap shows are sizes, so an object counts with its stored bytes
// whatever the area stands for.
function treeOf(module, parent = null) {
  const node = { kind: "module", name: module.name, parent, children: [], ...noSums() };
  node.path = pathOf(node);
  for (const child of module.children) node.children.push(treeOf(child, node));
  for (const [name, dtype, shape, raw, stored, parts, chain, values = null] of module.items) {
    const item = { kind: dtype < 0 ? "object" : "tensor", name, parent: node, children: [], dtype, shape, parts, chain, ...noSums() };
    item.path = pathOf(item);
    item.values = valuesOf(values);
    if (dtype < 0) item.objects = stored;
    else Object.assign(item, { raw, stored, tensors: 1, broken: Number(isBroken(item)), zeros: Number(isZero(item)) });
    node.children.push(item);
  }
  if (module.rest) {
    const [items, raw, stored, objects, broken, zeros] = module.rest;
    const name = `${count(items)} smaller`;
    node.children.push({ kind: "rest", name, parent: node, children: [], raw, stored, objects, tensors: items, broken, zeros, path: `${node.path ? `${node.path}: ` : ""}${name}` });
  }
  for (const child of node.children) addTo(node, child);
  return node;
}

function addTo(sums, more) {
  for (const name of Object.keys(noSums())) sums[name] += more[name];
}

const noSums = () => ({ raw: 0, stored: 0, objects: 0, tensors: 0, broken: 0, zeros: 0 });

function valuesOf(facts) {
  if (facts === null) return null;
  const [elements, nan, inf, zeros, min, max, mean, std, start = null, end = null, bars = "", below = 0, above = 0] = facts;
  return { elements, nan, inf, zeros, min, max, mean, std, start, end, bars, below, above };
}

const isBroken = (node) => Boolean(node.values && node.values.nan + node.values.inf);
const isZero = (node) => Boolean(node.values && node.values.elements && node.values.zeros === node.values.elements);

function pathOf(node) {
  return node.parent && node.parent.parent !== null ? `${node.parent.path}.${node.name}` : node.name;
}

const weigh = { stored: (node) => node.stored + node.objects, raw: (node) => node.raw + node.objects };
const tensorsOf = (node) => (node.kind === "tensor" ? [node] : node.children.flatMap(tensorsOf));

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
