// The treemap: squarified (Bruls, Huizing and van Wijk). Areas are exact: gaps are strokes, labels lie on the tiles, and
// nothing takes room of its own.

const MIN_TILE = 64; // square pixels; what is smaller is drawn with its neighbours
const LABELLED = 0.6; // modules up to this part of what is around them have their names on them; larger ones are nearly all of it

const view = { focus: ROOT, area: "stored", colour: COMPRESSED ? "ratio" : "dtype", found: null };

function squarify(nodes, value, box, place) {
  let { x, y, w, h } = box;
  let left = nodes.reduce((sum, node) => sum + value(node), 0);
  for (let start = 0; start < nodes.length; ) {
    const side = Math.min(w, h);
    const scale = (w * h) / left;
    const squareness = (length, thick) => Math.max(length / thick, thick / length);
    let [end, row, worst] = [start, 0, Infinity];
    while (end < nodes.length) {
      const longer = row + value(nodes[end]);
      const thick = (longer * scale) / side;
      const length = (node) => (value(node) * scale) / thick;
      const now = Math.max(squareness(length(nodes[start]), thick), squareness(length(nodes[end]), thick));
      if (now > worst) break;
      [end, row, worst] = [end + 1, longer, now];
    }
    const thick = (row * scale) / side;
    let along = 0;
    for (const node of nodes.slice(start, end)) {
      const length = (value(node) * scale) / thick;
      place(node, w >= h ? { x, y: y + along, w: thick, h: length } : { x: x + along, y, w: length, h: thick });
      along += length;
    }
    if (w >= h) [x, w] = [x + thick, w - thick];
    else [y, h] = [y + thick, h - thick];
    left -= row;
    start = end;
  }
}

// The largest first, as squarifying wants it; but what is about as large, as layers are, in its own order.
function inOrder(value) {
  const about = (node) => Math.round(Math.log(value(node)) / Math.log(1.1));
  const number = (node) => (/^\d+$/.test(node.name) ? Number(node.name) : 0);
  return (a, b) => about(b) - about(a) || number(a) - number(b);
}

// Tiles and the edges of modules around them, outer ones first.
function layOut(node, box, out) {
  const value = weigh[view.area];
  const children = node.children.filter((child) => value(child) > 0).sort(inOrder(value));
  const scale = (box.w * box.h) / children.reduce((sum, child) => sum + value(child), 0);
  let shown = children.findIndex((child) => value(child) * scale < MIN_TILE);
  if (shown < 0 || shown === children.length - 1) shown = children.length;
  const small = children.slice(shown);
  if (small.length) children.splice(shown, small.length, together(node, small));
  squarify(children, value, box, (child, inner) => {
    const parts = child.kind === "module" ? child.children.length : 0;
    if (parts > 1 && Math.min(inner.w, inner.h) > 9) out.edges.push({ node: child, box: inner });
    if (parts === 1 || (parts && Math.min(inner.w, inner.h) > 9)) layOut(child, inner, out);
    else out.tiles.push({ node: child, box: inner });
  });
  return out;
}

function together(parent, nodes) {
  const sum = { kind: "rest", parent, children: nodes, raw: 0, stored: 0, objects: 0, tensors: 0 };
  for (const node of nodes) for (const name of ["raw", "stored", "objects", "tensors"]) sum[name] += node[name];
  sum.name = `${count(nodes.length)} smaller`;
  sum.path = `${parent.path ? `${parent.path}: ` : ""}${sum.name}`;
  return sum;
}

function dtypeOf(node) {
  const largest = {};
  for (const tensor of tensorsOf(node)) largest[tensor.dtype] = (largest[tensor.dtype] ?? 0) + tensor.stored;
  const found = Object.entries(largest).sort((a, b) => b[1] - a[1])[0];
  return found ? Number(found[0]) : -1;
}

const fillOf = (node) => (view.colour === "ratio" ? ratioColour(ratioOf(node)) : dtypeColour(node.dtype ?? dtypeOf(node)));

function factsOf(node) {
  const facts = [];
  if (node.kind === "tensor") facts.push(["dtype", DATA.dtypes[node.dtype]], ["shape", shapeText(node.shape)]);
  else if (node.tensors) facts.push(["tensors", count(node.tensors)]);
  if (node.raw) facts.push(["in memory", size(node.raw)]);
  facts.push(["stored", size(node.stored + node.objects)]);
  if (node.raw) facts.push(["ratio", ratioText(ratioOf(node))]);
  const share = weigh[view.area](node) / weigh[view.area](ROOT);
  facts.push(["share of all", share >= 0.0005 ? `${fixed(share * 100, 1)} %` : "less than 0.1 %"]);
  if (node.parts > 1) facts.push(["shards", count(node.parts)]);
  if (node.chain >= 0) facts.push(["chain", DATA.chains[node.chain]]);
  return facts;
}

const shapeText = (shape) => (shape.length ? shape.join(" × ") : "scalar");
const within = (node, ancestor) => node !== null && (node === ancestor || within(node.parent, ancestor));
const matches = (node) => view.found === null || view.found.has(node) || node.children.some(matches);

// The module to look into when a tile is clicked: the outermost one in the focus that holds it and is not everything.
function stepInto(node) {
  const chain = [];
  for (let at = node.parent; at !== null && at !== view.focus; at = at.parent) chain.unshift(at);
  if (node.kind === "module") chain.push(node);
  return chain.find((module) => module.parent.children.length > 1) ?? (chain.length ? chain[chain.length - 1] : null);
}

function drawTreemap() {
  const target = byId("treemap");
  const [width, height] = [target.clientWidth, target.clientHeight];
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Treemap of sizes" });
  const box = { x: 0, y: 0, w: width, h: height };
  const { tiles, edges } = layOut(view.focus, box, { tiles: [], edges: [] });
  for (const tile of tiles) svg.append(tileOf(tile));
  const named = []; // modules with their names on them, inner ones last
  const pills = [];
  for (const edge of edges) {
    const { x, y, w, h } = edge.box;
    const around = named.filter((other) => isInside(edge.node, other.node));
    const outer = around.length ? around[around.length - 1].box : box;
    const part = (w * h) / (outer.w * outer.h);
    const layered = w >= 110 && h >= 80 && edge.node.children.some((child) => child.kind === "module");
    const nameable = part <= LABELLED && (!around.length || (around.length === 1 && layered));
    const pill = nameable ? pillOf(edge, around.length ? around[0].node : view.focus, pills) : null;
    const line = (pill ? 4 : 2) - (around.length ? 1 : 0);
    svg.append(draw("rect", { class: "edge", x, y, width: w, height: h, "stroke-width": line }));
    if (!pill) continue;
    pills.push(pill);
    named.push(edge);
  }
  for (const tile of tiles) label(tile, svg, pills, named);
  for (const pill of pills) svg.append(pill.back, pill.text);
  target.replaceChildren(svg);
  walkable(svg, ".tile");
  drawCrumbs();
  drawTreemapLegend();
}

const isInside = (node, ancestor) => node.parent !== null && within(node.parent, ancestor);

function tileOf({ node, box }) {
  const module = stepInto(node);
  const kind = node.kind === "module" ? "module" : module ? "inside" : "leaf";
  const mark = draw("g", { class: `tile ${kind}${matches(node) ? "" : " faded"}`, role: "img", tabindex: -1, "data-path": node.path, "data-bytes": weigh[view.area](node) });
  mark.append(draw("rect", { x: box.x, y: box.y, width: box.w, height: box.h, fill: fillOf(node), "stroke-width": Math.min(1, Math.min(box.w, box.h) / 12) }));
  tipped(mark, node.path, factsOf(node));
  if (module) {
    const go = () => look(module);
    mark.addEventListener("click", go);
    mark.addEventListener("keydown", (event) => event.key === "Enter" && go());
  }
  return mark;
}

const measure = document.createElement("canvas").getContext("2d");

function widthOf(text, weight) {
  measure.font = `${weight} 11.5px ${getComputedStyle(document.body).fontFamily}`;
  return measure.measureText(text).width;
}

function relative(node, ancestor) {
  return ancestor && ancestor.path ? node.path.slice(ancestor.path.length + 1) : node.path;
}

function pillOf({ node, box }, around, pills) {
  const full = relative(node, around);
  const last = (/^\d+$/.test(full) ? node.path : full).split(".").slice(-2).join("."); // a number alone says little
  const text = [last, node.name].find((form) => widthOf(form, 640) < box.w - 22);
  if (!text || box.h < 34) return null;
  const area = { x: box.x + 5, y: box.y + 5, w: widthOf(text, 640) + 12, h: 18 };
  const hit = pills.find((pill) => overlap(pill.area, area));
  if (hit) area.y = hit.area.y + hit.area.h + 3;
  if (area.y + area.h > box.y + box.h / 2 || pills.some((pill) => overlap(pill.area, area))) return null;
  const back = draw("rect", { class: "pill", x: area.x, y: area.y, width: area.w, height: area.h, rx: 5 });
  back.style.pointerEvents = "none";
  return { back, text: draw("text", { class: "pill-text", x: area.x + 6, y: area.y + 13 }, text), area };
}

const overlap = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

// The longest form of the name that fits, and below it the size: in the middle, lower where a module's name is, and
// upright in a narrow tile.
function label({ node, box }, svg, pills, named) {
  const holder = named.findLast((module) => isInside(node, module.node))?.node ?? view.focus;
  const full = relative(node, holder);
  const parts = full.split(".");
  const role = /^(weight|bias)$/.test(node.name) && parts.length > 1 ? parts.slice(-2)[0] : node.name;
  const forms = node.kind === "rest" ? [node.name] : [full, parts.slice(-2).join("."), role];
  const across = forms.find((form) => widthOf(form, 500) < box.w - 10);
  const upright = across || box.w < 17 ? null : forms.find((form) => widthOf(form, 500) < box.h - 16);
  const text = across ?? upright;
  if (!text || box.h < 17) return;
  const bytes = size(weigh[view.area](node));
  const both = across && box.h > 38 && widthOf(bytes, 400) < box.w - 10;
  const [long, high] = [Math.max(widthOf(text, 500), both ? widthOf(bytes, 400) : 0), both ? 30 : 15];
  const middle = { x: box.x + box.w / 2, y: box.y + box.h / 2 };
  const spot = upright
    ? { x: middle.x - 7.5, y: middle.y - long / 2, w: 15, h: long }
    : { x: middle.x - long / 2, y: middle.y - high / 2, w: long, h: high };
  const hit = pills.find((pill) => overlap(pill.area, spot));
  if (hit) {
    spot.y = Math.max(spot.y, hit.area.y + hit.area.h + 5);
    if (spot.y + spot.h > box.y + box.h - 2 || pills.some((pill) => overlap(pill.area, spot))) return;
  }
  const style = { "text-anchor": "middle", "font-size": 11.5, fill: inkOn(fillOf(node)), opacity: matches(node) ? 1 : 0.14 };
  const place = upright
    ? { x: 0, y: 4, transform: `translate(${middle.x} ${spot.y + spot.h / 2}) rotate(-90)` }
    : { x: middle.x, y: spot.y + 11.5 };
  svg.append(draw("text", { ...style, ...place, class: "tile-label", "font-weight": 500 }, text));
  if (both) svg.append(draw("text", { ...style, x: middle.x, y: spot.y + 26, class: "tile-size" }, bytes));
}

function look(module) {
  view.focus = module;
  hideTip();
  drawTreemap();
  byId("treemap").querySelector(".tile")?.focus({ preventScroll: true });
}

function drawCrumbs() {
  const crumbs = [];
  for (let at = view.focus; at !== null; at = at.parent) {
    const name = at.parent === null ? "all" : at.name || "(no name)";
    if (at === view.focus) crumbs.unshift(make("span", { "aria-current": "true" }, name));
    else {
      const button = make("button", { type: "button" }, name);
      button.addEventListener("click", () => look(at));
      crumbs.unshift(button, make("span", {}, "›"));
    }
  }
  byId("crumbs").replaceChildren(...(view.focus === ROOT ? [] : crumbs));
}

function drawTreemapLegend() {
  const target = byId("treemap-legend");
  if (view.colour === "ratio") return rampLegend(target, ...scaleEnds(DATA.scale), "Stored / in memory");
  const keys = DATA.dtypes.slice(0, KINDS.length).map((name, dtype) => [name, dtypeColour(dtype)]);
  if (ROOT.objects) keys.push(["object", PLAIN]);
  target.replaceChildren(...keys.map(([name, colour]) => {
    const patch = make("i");
    patch.style.background = colour;
    return make("span", { class: "key" }, patch, name);
  }));
}

choice(byId("area"), "area", [["stored", "stored"], ["raw", "in memory"]], view.area, (value) => {
  view.area = value;
  drawTreemap();
});
choice(byId("colour"), "colour", [["ratio", "ratio"], ["dtype", "dtype"]], view.colour, (value) => {
  view.colour = value;
  drawTreemap();
});
byId("where").addEventListener("keydown", (event) => {
  if (event.key === "Escape" && view.focus !== ROOT) look(view.focus.parent);
});

let resizing = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => {
    drawTreemap();
    drawHeat();
  });
});
