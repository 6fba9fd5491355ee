// Layers side by side: a column for each layer and a row for each part of a layer, with totals at the ends. In a narrow
// window, and where columns would be too narrow even for upright figures, layers are rows. Labels stay in place while
// the cells scroll.

const NARROW = 560; // of the window, as in the style sheet
const UPRIGHT = 16; // pixels that upright figures of the usual size take; totals may use smaller ones
const LEAST = 11;
const MANY = 48; // layers; more of them are columns in any window that is not narrow
const SPARE = 3; // pixels around the figures in a cell
const FONT = 11.5;
const ALL = "all";
const heat = { stack: 0, metric: COMPRESSED ? "ratio" : "stored" };

function drawHeat() {
  byId("layers").hidden = !DATA.stacks.length;
  const room = byId("heat").clientWidth;
  if (!DATA.stacks.length || !room) return;
  const stack = DATA.stacks[heat.stack];
  const sums = sumsOf(stack);
  const layers = [...stack.layers.map((name, key) => ({ key, name, label: name, where: `layer ${name}` })), { key: ALL, name: ALL, label: ALL, where: "all layers" }];
  const roles = [...stack.roles.map((name, key) => ({ key, name, label: name })), { key: ALL, name: ALL, label: ALL }];
  const down = innerWidth <= NARROW || (layers.length - 1 <= MANY && measured(roles, layers, room, false).step < UPRIGHT);
  if (down) for (const role of roles) role.label = role.name.replace(/\.weight$/, "");
  const [rows, columns] = down ? [layers, roles] : [roles, layers];
  const grid = measured(rows, columns, room, down);
  const metric = METRICS[heat.metric](sums);
  const cell = (row, column) => {
    const [role, layer] = down ? [column, row] : [row, column];
    return { sum: sums.get(`${role.key}/${layer.key}`), role: role.name, where: layer.where, total: role.key === ALL || layer.key === ALL };
  };
  const foot = columns.map((column, at) => metric.texts(cell(rows.at(-1), column).sum)[0] ?? "").reduce((most, text) => Math.max(most, widthOf(text, 500)), 0);
  if (!down && foot > grid.step - SPARE && grid.step >= LEAST) grid.foot = foot + 12; // upright figures
  const svg = draw("svg", { width: grid.width, height: grid.y(rows.length) + 1, role: "group", "aria-label": `Layers of ${stack.name}` });
  drawHeadings(svg, columns, grid, down);
  rows.forEach((row, line) => columns.forEach((column, at) => {
    const last = at === columns.length - 1;
    const box = { x: grid.x(at), y: grid.y(line), w: last ? grid.all : grid.step, h: line === rows.length - 1 ? grid.foot : grid.high };
    svg.append(cellOf(cell(row, column), box, metric));
  }));
  byId("heat").replaceChildren(labelsOf(rows, grid, down), svg);
  walkable(svg, ".cell");
  const { broken, zeros } = sums.get(`${ALL}/${ALL}`);
  byId("heat-legend").replaceChildren(...metric.legend, ...flagKeys({ broken, zeros }));
}

// Totals of each cell, of each row and column, and of everything.
function sumsOf(stack) {
  const sums = new Map();
  for (const [row, column, tensors, raw, stored, broken = 0, zeros = 0, number = 0, mean = 0, std = 0] of stack.cells)
    for (const key of [`${row}/${column}`, `${row}/${ALL}`, `${ALL}/${column}`, `${ALL}/${ALL}`]) {
      const sum = sums.get(key) ?? { tensors: 0, raw: 0, stored: 0, broken: 0, zeros: 0, number: 0, mean: 0, std: 0 };
      const total = sum.number + number;
      const apart = mean - sum.mean;
      const variance = total ? (sum.number * sum.std ** 2 + number * std ** 2) / total + (apart ** 2 * sum.number * number) / total ** 2 : 0;
      sums.set(key, {
        tensors: sum.tensors + tensors, raw: sum.raw + raw, stored: sum.stored + stored, broken: sum.broken + broken, zeros: sum.zeros + zeros,
        number: total, mean: total ? sum.mean + (apart * number) / total : 0, std: Math.sqrt(variance),
      });
    }
  return sums;
}

// What cells show: a colour, a figure in forms of decreasing length, and a legend.
const METRICS = {
  ratio: (sums) => ({
    fill: (sum) => ratioColour(ratioOf(sum)),
    texts: (sum) => (sum && sum.raw ? [3, 2].map((digits) => fixed(ratioOf(sum), digits)) : []),
    legend: ratioLegend([...sums.values()].map(ratioOf)),
  }),
  stored: (sums) => {
    const most = largestOf(sums, (sum) => sum.stored);
    return {
      fill: (sum, total) => (total ? PLAIN : ramp(sum.stored / most)),
      texts: (sum) => (sum ? [size(sum.stored), shortSize(sum.stored)] : []),
      legend: [make("span", {}, "Stored"), rampKey(size(0), size(most), "Stored"), key("totals", PLAIN)],
    };
  },
  std: (sums) => {
    const found = cellsOf(sums).map((sum) => sum.std).filter((std) => std > 0);
    const [low, high] = found.length ? [Math.min(...found), Math.max(...found)] : [1, 1];
    return {
      fill: ({ std }) => (std ? ramp(high > low ? Math.log(std / low) / Math.log(high / low) : 0.5) : PLAIN),
      texts: (sum) => (sum && sum.number ? [figure(sum.std), figure(sum.std, 2), figure(sum.std, 1)] : []),
      legend: [make("span", {}, "Standard deviation"), rampKey(figure(low), figure(high), "Standard deviation")],
    };
  },
};

const cellsOf = (sums) => [...sums].filter(([key]) => !key.includes(ALL)).map(([, sum]) => sum);
const largestOf = (sums, value) => cellsOf(sums).reduce((most, sum) => Math.max(most, value(sum)), 1);

// Where cells lie, in pixels.
function measured(rows, columns, room, down) {
  const [gap, margin] = down ? [4, 6] : [10, 10]; // before the totals; after the labels
  const longest = rows.reduce((most, row) => Math.max(most, row.label.length), 0) * 7.3 + (down ? 2 : 8);
  const label = Math.min(longest, down ? 60 : Math.max(160, room * 0.32));
  const all = down ? 38 : 66;
  const step = Math.max(down ? 33 : 6, Math.min(150, (room - label - margin - 1 - gap - all) / (columns.length - 1)));
  const high = down || rows.length > 25 ? 22 : 26;
  const top = down ? Math.min(200, columns.reduce((most, column) => Math.max(most, column.label.length), 0) * 7.3 + 18) : 26;
  const grid = { gap, margin, label, step, high, top, foot: high, all };
  grid.x = (at) => at * step + (at === columns.length - 1 ? gap : 0);
  grid.y = (line) => top + (line < rows.length - 1 ? line * high : line === rows.length - 1 ? line * high + gap : (line - 1) * high + gap + grid.foot);
  grid.width = (columns.length - 1) * step + gap + grid.all + 1;
  return grid;
}

function drawHeadings(svg, columns, grid, down) {
  const every = down ? 1 : Math.ceil(30 / grid.step);
  columns.forEach((column, at) => {
    const middle = grid.x(at) + (column.key === ALL ? grid.all : grid.step) / 2;
    if (!down && column.key !== ALL && at % every) return;
    if (down) svg.append(draw("text", { class: column.key === ALL ? "axis" : "role", transform: `translate(${middle + 4} ${grid.top - 8}) rotate(-90)` }, shortened(column.label, 24)));
    else svg.append(draw("text", { class: "axis", x: middle, y: grid.top - 9, "text-anchor": "middle" }, column.label));
  });
}

function labelsOf(rows, grid, down) {
  const width = grid.label + grid.margin;
  const svg = draw("svg", { class: "labels", width, height: grid.y(rows.length) + 1, "aria-hidden": "true" });
  rows.forEach((row, line) => {
    const high = line === rows.length - 1 ? grid.foot : grid.high;
    const text = shortened(row.label, Math.floor(grid.label / 7.2));
    svg.append(draw("text", { class: down || row.key === ALL ? "axis" : "role", x: grid.label, y: grid.y(line) + high / 2 + 4, "text-anchor": "end" }, text));
  });
  return svg;
}

const shortened = (text, most) => (text.length > most ? `…${text.slice(-(most - 1))}` : text);

function cellOf({ sum, role, where, total }, box, metric) {
  const mark = draw("g", { class: `cell${sum ? "" : " none"}`, role: "img", tabindex: -1, "data-role": role, "data-where": where });
  const gap = box.w > 12 ? 1 : 0.5;
  const rounding = box.w > 12 ? 3 : 1;
  const place = { x: box.x + gap, y: box.y + gap, width: box.w - 2 * gap, height: box.h - 2 * gap };
  const rect = draw("rect", { ...place, rx: rounding });
  mark.append(rect);
  if (!sum) {
    mark.setAttribute("aria-label", `${role}, ${where}: nothing`);
    return mark;
  }
  const fill = metric.fill(sum, total);
  rect.setAttribute("fill", fill);
  mark.append(...stripesOf(fill, place, rounding), ...(total ? [] : frameOf(sum, box, fill)));
  mark.dataset.ratio = ratioOf(sum) ?? "";
  const middle = [box.x + box.w / 2, box.y + box.h / 2];
  const style = { class: "cell-text", "text-anchor": "middle", fill: inkOn(fill) };
  const texts = metric.texts(sum);
  const across = texts.find((text) => widthOf(text, 500) < box.w - SPARE);
  const upright = across || box.w < (total ? LEAST : UPRIGHT) ? null : texts.find((text) => widthOf(text, 500) < box.h - SPARE);
  const font = across ? FONT : Math.min(FONT, box.w - SPARE);
  if (across) mark.append(draw("text", { ...style, "font-size": font, x: middle[0], y: middle[1] + 4 }, across));
  else if (upright) mark.append(draw("text", { ...style, "font-size": font, y: 0.35 * font, transform: `translate(${middle.join(" ")}) rotate(-90)` }, upright));
  tipped(mark, `${role}, ${where}`, [
    ["tensors", count(sum.tensors)],
    ["in memory", size(sum.raw)],
    ["stored", size(sum.stored)],
    ["ratio", ratioText(ratioOf(sum))],
    ...(sum.number ? [["mean, std", `${figure(sum.mean)}, ${figure(sum.std)}`]] : []),
    ...(sum.broken ? [["with NaN or Inf", many(sum.broken, "tensor")]] : []),
    ...(sum.zeros ? [["all zeros", many(sum.zeros, "tensor")]] : []),
  ]);
  return mark;
}

DATA.stacks.forEach((stack, index) => byId("stack").append(make("option", { value: index }, `${stack.name} (${stack.layers.length})`)));
byId("stack").addEventListener("change", (event) => {
  heat.stack = Number(event.target.value);
  drawHeat();
});
choice(byId("metric"), "metric", [["ratio", "ratio"], ["stored", "stored"], ...(DATA.values ? [["std", "std"]] : [])], heat.metric, (value) => {
  heat.metric = value;
  drawHeat();
});
