// Layers side by side: a column for each layer, a row for each part of a layer, and sums at the ends.

const heat = { stack: 0, metric: COMPRESSED ? "ratio" : "stored" };

function drawHeat() {
  byId("layers").hidden = !DATA.stacks.length;
  if (!DATA.stacks.length) return;
  const stack = DATA.stacks[heat.stack];
  const sums = new Map();
  const add = (row, column, tensors, raw, stored) => {
    const key = `${row}/${column}`;
    const sum = sums.get(key) ?? { tensors: 0, raw: 0, stored: 0 };
    sums.set(key, { tensors: sum.tensors + tensors, raw: sum.raw + raw, stored: sum.stored + stored });
  };
  for (const [row, column, ...rest] of stack.cells) {
    add(row, column, ...rest);
    add(row, "all", ...rest);
    add("all", column, ...rest);
    add("all", "all", ...rest);
  }
  const most = Math.max(...stack.cells.map((cell) => cell[4]), 1);
  const wide = { label: Math.min(300, Math.max(...stack.roles.map((role) => role.length)) * 7.3 + 18), all: 62, gap: 10 };
  const room = byId("heat").clientWidth - wide.label - wide.all - wide.gap;
  const step = Math.max(6, Math.min(150, room / stack.layers.length));
  const [tall, top] = [stack.roles.length > 24 ? 20 : 26, 26];
  const foot = top + stack.roles.length * tall + wide.gap;
  const [width, height] = [wide.label + stack.layers.length * step + wide.gap + wide.all, foot + tall];
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Layers of ${stack.name}` });

  const every = Math.ceil(30 / step);
  stack.layers.forEach((layer, column) => {
    if (column % every === 0)
      svg.append(draw("text", { class: "axis", x: wide.label + (column + 0.5) * step, y: top - 9, "text-anchor": "middle" }, layer));
  });
  svg.append(draw("text", { class: "axis", x: width - wide.all / 2, y: top - 9, "text-anchor": "middle" }, "all"));
  const rows = [...stack.roles.keys(), "all"];
  for (const row of rows) {
    const y = row === "all" ? foot : top + row * tall;
    const name = row === "all" ? "all" : stack.roles[row];
    const shown = name.length * 7.3 > wide.label ? `…${name.slice(-Math.floor(wide.label / 7.3) + 2)}` : name;
    svg.append(draw("text", { class: row === "all" ? "axis" : "role", x: wide.label - 10, y: y + tall / 2 + 4, "text-anchor": "end" }, shown));
    for (const column of [...stack.layers.keys(), "all"]) {
      const x = column === "all" ? width - wide.all : wide.label + column * step;
      const where = column === "all" ? "all layers" : `layer ${stack.layers[column]}`;
      const box = { x, y, w: column === "all" ? wide.all : step, h: tall };
      svg.append(cellOf(sums.get(`${row}/${column}`), box, row === "all" ? "all" : name, where, row === "all" || column === "all", most, stack.scale));
    }
  }
  byId("heat").replaceChildren(svg);
  walkable(svg, ".cell");
  if (heat.metric === "ratio") rampLegend(byId("heat-legend"), ...scaleEnds(stack.scale), "Stored / in memory");
  else rampLegend(byId("heat-legend"), size(0), size(most), "Stored");
}

function cellOf(sum, box, role, where, total, most, scale) {
  const mark = draw("g", { class: `cell${sum ? "" : " none"}`, role: "img", tabindex: -1, "data-role": role, "data-where": where });
  const gap = box.w > 12 ? 1 : 0.5;
  const rect = draw("rect", { x: box.x + gap, y: box.y + gap, width: box.w - 2 * gap, height: box.h - 2 * gap, rx: box.w > 12 ? 3 : 1 });
  mark.append(rect);
  if (!sum) {
    mark.setAttribute("aria-label", `${role}, ${where}: nothing`);
    return mark;
  }
  const ratio = ratioOf(sum);
  const byRatio = heat.metric === "ratio";
  const fill = byRatio ? ratioColour(ratio, scale) : total ? PLAIN : ramp(sum.stored / most);
  rect.setAttribute("fill", fill);
  mark.dataset.ratio = ratio ?? "";
  const text = byRatio ? (ratio === null ? "-" : fixed(ratio, box.w >= 46 ? 3 : 2)) : size(sum.stored);
  if (widthOf(text, 500) < box.w - 6)
    mark.append(draw("text", { x: box.x + box.w / 2, y: box.y + box.h / 2 + 4, "text-anchor": "middle", "font-size": 11.5, "font-weight": 500, fill: inkOn(fill) }, text));
  tipped(mark, `${role}, ${where}`, [
    ["tensors", count(sum.tensors)],
    ["in memory", size(sum.raw)],
    ["stored", size(sum.stored)],
    ["ratio", ratioText(ratio)],
  ]);
  return mark;
}

DATA.stacks.forEach((stack, index) => byId("stack").append(make("option", { value: index }, `${stack.name} (${stack.layers.length})`)));
byId("stack").addEventListener("change", (event) => {
  heat.stack = Number(event.target.value);
  drawHeat();
});
choice(byId("metric"), "metric", [["ratio", "ratio"], ["stored", "stored"]], heat.metric, (value) => {
  heat.metric = value;
  drawHeat();
});
