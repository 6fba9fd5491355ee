// The list of tensors: found by what is typed, sorted by a click on a heading, and shown a hundred at a time.

const PAGE = 100;
const TENSORS = tensorsOf(ROOT);
const LARGEST = TENSORS.reduce((most, tensor) => Math.max(most, tensor.stored), 1);
const COLUMNS = [
  ["name", (tensor) => tensor.path],
  ["dtype", (tensor) => DATA.dtypes[tensor.dtype]],
  ["shape", (tensor) => tensor.shape.reduce((product, length) => product * length, 1)],
  ["in memory", (tensor) => tensor.raw],
  ["stored", (tensor) => tensor.stored],
  ["ratio", (tensor) => ratioOf(tensor) ?? -1],
];
const list = { sort: 4, descending: true, shown: PAGE, words: [] };

const textOf = new Map(
  TENSORS.map((tensor) => [tensor, `${tensor.path} ${DATA.dtypes[tensor.dtype]} ${shapeText(tensor.shape)} ${tensor.shape.join("x")}`.toLowerCase()]));
const names = new Intl.Collator("en", { numeric: true });

function drawTensors() {
  const value = COLUMNS[list.sort][1];
  const compare = list.sort < 2 ? (a, b) => names.compare(value(a), value(b)) : (a, b) => value(a) - value(b);
  const found = TENSORS.filter((tensor) => list.words.every((word) => textOf.get(tensor).includes(word)));
  found.sort((a, b) => (list.descending ? compare(b, a) : compare(a, b)));
  const shown = found.slice(0, list.shown);
  byId("tensors").tBodies[0].replaceChildren(...shown.map(rowOf));
  byId("found").textContent = found.length === TENSORS.length ? count(found.length) : `${count(found.length)} of ${count(TENSORS.length)}`;
  byId("more").hidden = found.length <= shown.length;
  byId("more").textContent = `Show ${count(Math.min(PAGE, found.length - shown.length))} more`;
  drawHeadings();
  return found;
}

function rowOf(tensor) {
  const bar = make("span", { class: "bar" });
  bar.style.width = `${Math.max(1, (tensor.stored / LARGEST) * 90)}px`;
  const dot = make("span", { class: "dot" });
  dot.style.background = ratioColour(ratioOf(tensor));
  return make("tr", {},
    make("th", { scope: "row" }, tensor.path),
    make("td", {}, DATA.dtypes[tensor.dtype]),
    make("td", { class: "shape" }, shapeText(tensor.shape)),
    make("td", {}, size(tensor.raw)),
    make("td", {}, bar, size(tensor.stored)),
    make("td", {}, dot, ratioText(ratioOf(tensor))));
}

function drawHeadings() {
  const row = make("tr");
  COLUMNS.forEach(([name], index) => {
    const button = make("button", { type: "button" }, index === list.sort ? `${name} ${list.descending ? "↓" : "↑"}` : name);
    const heading = make("th", { scope: "col" }, button);
    if (index === list.sort) heading.setAttribute("aria-sort", list.descending ? "descending" : "ascending");
    button.addEventListener("click", () => {
      list.descending = index === list.sort ? !list.descending : index > 1;
      list.sort = index;
      drawTensors();
      byId("tensors").tHead.querySelectorAll("button")[index].focus();
    });
    row.append(heading);
  });
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

drawTreemap();
drawHeat();
drawTensors();
