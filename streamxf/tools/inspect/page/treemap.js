// The treemap: its tiles, and what they do.

const TENSORS = tensorsOf(ROOT);
const view = { focus: ROOT, area: "stored", colour: COMPRESSED ? "ratio" : "dtype", found: null };

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
  facts.push(...valueFacts(node));
  if (node.parts > 1) facts.push(["shards", count(node.parts)]);
  if (node.chain >= 0) facts.push(["chain", DATA.chains[node.chain]]);
  return facts;
}

function valueFacts({ kind, values, broken, zeros }) {
  if (kind !== "tensor") return [...(broken ? [["with NaN or Inf", many(broken, "tensor")]] : []), ...(zeros ? [["all zeros", many(zeros, "tensor")]] : [])];
  if (values === null) return [];
  const counts = [["NaN", values.nan], ["Inf", values.inf]].filter(([, number]) => number);
  const facts = counts.map(([label, number]) => [label, count(number)]);
  facts.push(["zeros", percent(values.zeros, values.elements)]);
  if (values.min !== null) facts.push(["range", `${figure(values.min)} to ${figure(values.max)}`], ["mean, std", `${figure(values.mean)}, ${figure(values.std)}`]);
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
  if (!width || !height) return; // a window that is not laid out yet
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
  for (const { node, box: inner } of tiles) svg.append(...frameOf(node, inner, fillOf(node)));
  for (const tile of tiles) label(tile, svg, pills, named);
  for (const pill of pills) svg.append(pill.back, pill.text);
  target.replaceChildren(svg);
  walkable(svg, ".tile");
  drawCrumbs();
  drawTreemapLegend();
}

function tileOf({ node, box }) {
  const module = stepInto(node);
  const kind = node.kind === "module" ? "module" : module ? "inside" : "leaf";
  const mark = draw("g", { class: `tile ${kind}${matches(node) ? "" : " faded"}`, role: "img", tabindex: -1, "data-path": node.path, "data-bytes": weigh[view.area](node) });
  const [fill, place] = [fillOf(node), { x: box.x, y: box.y, width: box.w, height: box.h }];
  mark.append(draw("rect", { ...place, fill, "stroke-width": Math.min(1, Math.min(box.w, box.h) / 12) }), ...stripesOf(fill, place));
  tipped(mark, node.path, factsOf(node));
  if (module) {
    const go = () => look(module);
    mark.addEventListener("click", go);
    mark.addEventListener("keydown", (event) => event.key === "Enter" && go());
  }
  return mark;
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
  const keys = DATA.dtypes.slice(0, KINDS.length).map((name, dtype) => key(name, dtypeColour(dtype)));
  if (ROOT.objects) keys.push(key("object", PLAIN));
  const legend = view.colour === "ratio" ? ratioLegend(TENSORS.map(ratioOf)) : keys;
  byId("treemap-legend").replaceChildren(...legend, ...flagKeys(ROOT));
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
