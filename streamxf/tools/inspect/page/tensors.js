// The list of tensors: filtered by a search, sorted by a click on a heading, and shown a hundred at a time. A narrow
// window hides most columns, and shows their content below the name.

const PAGE = 100;
const LARGEST = TENSORS.reduce((most, tensor) => Math.max(most, tensor.stored), 1);
const list = { view: "sizes", sort: "stored", descending: true, shown: PAGE, words: [] };

// A column: heading, value to sort by, content of a cell, and CSS classes.
const COMMON = [
  { name: "name", value: (tensor) => tensor.path, cell: nameCell },
  { name: "dtype", value: dtypeName, cell: dtypeName, kind: "wide" },
  { name: "shape", value: (tensor) => tensor.shape.reduce((product, length) => product * length, 1), cell: (tensor) => shapeText(tensor.shape), kind: "wide shape" },
];
const VIEWS = {
  sizes: [
    ...COMMON,
    { name: "in memory", value: (tensor) => tensor.raw, cell: (tensor) => size(tensor.raw), kind: "wide" },
    { name: "stored", value: (tensor) => tensor.stored, cell: storedCell },
    { name: "ratio", value: (tensor) => ratioOf(tensor) ?? -1, cell: ratioCell },
  ],
  values: [
    ...COMMON,
    { name: "NaN, Inf", value: (tensor) => known(tensor, (values) => values.nan + values.inf), cell: (tensor) => (tensor.broken ? count(tensor.values.nan + tensor.values.inf) : "-"), kind: "wide" },
    { name: "zeros", value: (tensor) => known(tensor, (values) => values.zeros / Math.max(values.elements, 1)), cell: (tensor) => (tensor.values ? percent(tensor.values.zeros, tensor.values.elements) : "-"), kind: "wide" },
    ...["min", "max", "mean"].map((name) => ({ name, value: (tensor) => known(tensor, (values) => values[name]), cell: (tensor) => figureOf(tensor, name), kind: "wide" })),
    { name: "std", value: (tensor) => known(tensor, (values) => values.std), cell: (tensor) => figureOf(tensor, "std") },
    { name: "distribution", value: null, cell: distribution, kind: "bars" },
  ],
};

function dtypeName(tensor) {
  return DATA.dtypes[tensor.dtype];
}

const known = (tensor, value) => (tensor.values ? value(tensor.values) ?? -Infinity : -Infinity);
const figureOf = (tensor, name) => (tensor.values ? figure(tensor.values[name]) : "-");

function nameCell(tensor) {
  const facts = list.view === "values" && tensor.values && tensor.values.min !== null
    ? [`${figure(tensor.values.min)} to ${figure(tensor.values.max)}`, `mean ${figure(tensor.values.mean)}`, `${percent(tensor.values.zeros, tensor.values.elements)} zeros`]
    : [size(tensor.raw)];
  return [tensor.path, ...flagsOf(tensor), make("small", {}, ...[dtypeName(tensor), shapeText(tensor.shape), ...facts].map((fact) => make("span", {}, fact)))];
}

function flagsOf({ values, zeros }) {
  if (values === null) return [];
  const counts = [["NaN", values.nan], ["Inf", values.inf]].filter(([, number]) => number);
  const flags = counts.map(([what, number]) => make("span", { class: "flag bad" }, `${count(number)} ${what}`));
  return zeros ? [...flags, make("span", { class: "flag odd" }, "all zeros")] : flags;
}

function storedCell(tensor) {
  const bar = make("span", { class: "bar" });
  bar.style.width = `${Math.max(1, (tensor.stored / LARGEST) * 90)}px`;
  return [bar, size(tensor.stored)];
}

function ratioCell(tensor) {
  const fill = ratioColour(ratioOf(tensor));
  const dot = make("i", { class: `dot ${{ [BELOW]: "under", [ABOVE]: "over" }[fill] ?? ""}` });
  dot.style.backgroundColor = fill;
  return [dot, ratioText(ratioOf(tensor))];
}

// A histogram; a pale bar at an end stands for values beyond it.
function distribution({ values }) {
  if (values === null || !values.bars) return "";
  const [wide, high] = [120, 24];
  const step = Math.min(12, (wide - 12) / values.bars.length);
  const range = `${figure(values.start)} to ${figure(values.end)}`;
  const beyond = [["below", values.below], ["above", values.above]].filter(([, number]) => number).map(([side, number]) => `, ${count(number)} ${side}`);
  const svg = draw("svg", { width: step * values.bars.length + 12, height: high, role: "img", "aria-label": `distribution from ${range}${beyond.join("")}` });
  svg.append(draw("title", {}, `${range}${beyond.join("")}`));
  [...values.bars].forEach((digit, at) => {
    const part = (parseInt(digit, 36) / 35) * (high - 1);
    if (part) svg.append(draw("rect", { x: 6 + at * step, y: high - Math.max(part, 1), width: Math.max(step - 0.6, 1), height: Math.max(part, 1) }));
  });
  if (values.below) svg.append(draw("rect", { class: "beyond", x: 0, y: high - 5, width: 3, height: 5 }));
  if (values.above) svg.append(draw("rect", { class: "beyond", x: step * values.bars.length + 9, y: high - 5, width: 3, height: 5 }));
  return svg;
}

const searched = (tensor) => `${tensor.path} ${dtypeName(tensor)} ${shapeText(tensor.shape)} ${tensor.shape.join("x")} ${flagsOf(tensor).map((flag) => flag.textContent).join(" ")}`.toLowerCase();
const textOf = new Map(TENSORS.map((tensor) => [tensor, searched(tensor)]));
const names = new Intl.Collator("en", { numeric: true });

function drawTensors() {
  const columns = VIEWS[list.view];
  const { value } = columns.find((column) => column.name === list.sort);
  const byValue = list.sort === "name" || list.sort === "dtype" ? (a, b) => names.compare(value(a), value(b)) : (a, b) => value(a) - value(b);
  const found = TENSORS.filter((tensor) => list.words.every((word) => textOf.get(tensor).includes(word)));
  found.sort((a, b) => (list.descending ? byValue(b, a) : byValue(a, b)) || names.compare(a.path, b.path));
  const shown = found.slice(0, list.shown);
  byId("tensors").tBodies[0].replaceChildren(...shown.map((tensor) => make("tr", {}, ...columns.map((column, at) => cellIn(column, tensor, at === 0)))));
  byId("found").textContent = found.length === TENSORS.length ? count(found.length) : `${count(found.length)} of ${count(TENSORS.length)}`;
  byId("more").hidden = found.length <= shown.length;
  byId("more").textContent = `Show ${count(Math.min(PAGE, found.length - shown.length))} more`;
  drawColumns(columns);
  return found;
}

function cellIn({ cell, kind = "" }, tensor, first) {
  const content = cell(tensor);
  return make(first ? "th" : "td", first ? { scope: "row" } : { class: kind }, ...(Array.isArray(content) ? content : [content]));
}

function drawColumns(columns) {
  const row = make("tr");
  for (const { name, value, kind = "" } of columns) {
    const sorted = name === list.sort;
    const button = make("button", { type: "button" }, sorted ? `${name} ${list.descending ? "↓" : "↑"}` : name);
    const heading = make("th", { scope: "col", class: kind }, value ? button : name);
    if (sorted) heading.setAttribute("aria-sort", list.descending ? "descending" : "ascending");
    button.addEventListener("click", () => {
      list.descending = sorted ? !list.descending : !["name", "dtype"].includes(name);
      list.sort = name;
      drawTensors();
      byId("tensors").tHead.querySelectorAll("th")[columns.findIndex((column) => column.name === name)].firstChild.focus();
    });
    row.append(heading);
  }
  byId("tensors").tHead.replaceChildren(row);
}

byId("search").addEventListener("input", (event) => {
  list.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  list.shown = PAGE;
  const found = drawTensors();
  view.found = list.words.length ? new Set(found) : null;
  drawTreemap();
});
byId("more").addEventListener("click", () => {
  list.shown += PAGE;
  drawTensors();
});
byId("columns").hidden = !DATA.values;
choice(byId("columns"), "columns", [["sizes", "sizes"], ["values", "values"]], list.view, (value) => {
  list.view = value;
  Object.assign(list, { sort: value === "values" ? "NaN, Inf" : "stored", descending: true });
  drawTensors();
});

drawTreemap();
drawHeat();
drawTensors();
