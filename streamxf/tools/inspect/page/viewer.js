// The viewer: opens a folder with the reader, makes of it what `page_data` makes for a page of inspect, and shows the
// values of tensors. Keys are read once from their field, which is emptied, and are nowhere else but in memory.

const MAX_FILES = 100000;
const MAX_ITEMS = 20000;
const MAX_STACKS = 12;
const MAX_LAYERS = 160;
const MAX_ROLES = 40;
const SMALL_ROLE = 0.002;
const MAX_PARTS = 31;

const $ = (selector) => document.querySelector(selector);
const element = (tag, attributes, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
// Text of a checkpoint, in one line, with all that would steer it as escapes.
const printed = (text, width = 300) => {
  const safe = text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
  return safe.length > width ? `${safe.slice(0, width - 3)}...` : safe;
};
const sizeText = (bytes) => {
  for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (bytes >= scale) return `${(bytes / scale).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} ${unit}`;
  return `${bytes} byte${bytes === 1 ? "" : "s"}`;
};
const counted = (number, noun) => `${number.toLocaleString("en-US")} ${noun}${number === 1 ? "" : "s"}`;
const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);

// -- the folder --------------------------------------------------------------------------------------------------------

// All files below a folder that was dropped, as a handle, or, where there are none, as an entry, which Chromium does not
// read for pages that are files themselves.
async function filesBelow(folder, path = "", found = new Map()) {
  if (found.size > MAX_FILES) throw new Error("there are too many files in this folder");
  for (const each of folder.entries ? await Array.fromAsync(folder.values()) : await entriesIn(folder)) {
    const [name, isFile] = [path + each.name, each.isFile ?? each.kind === "file"];
    if (!isFile) await filesBelow(each, `${name}/`, found);
    else found.set(name, each.getFile ? await each.getFile() : await new Promise((done, failed) => each.file(done, failed)));
  }
  return found;
}

async function entriesIn(folder) {
  const reader = folder.createReader();
  const found = [];
  for (let more = null; more === null || more.length; found.push(...more)) more = await new Promise((done, failed) => reader.readEntries(done, failed));
  return found;
}

const sourceOfFile = (file) => ({
  size: file.size,
  read: async (begin, end) => {
    const data = new Uint8Array(await file.slice(begin, end).arrayBuffer());
    if (data.length !== end - begin) throw new Error(`${printed(file.name)} is shorter than it was`);
    return data;
  },
});

// All metadata files below a folder: where each is, and of which rank.
function checkpointsIn(files) {
  const found = [];
  for (const path of files.keys()) {
    const [, folder, rank] = /^((?:.*\/)?)(?:\.metadata|__(0|[1-9][0-9]{0,9})\.metadata)$/s.exec(path) ?? [];
    if (folder !== undefined) found.push({ path, folder, rank: rank === undefined ? null : Number(rank) });
  }
  return found.sort((a, b) => (a.path < b.path ? -1 : 1));
}

const folderOf = (files, folder) => ({ open: async (path, at = path.startsWith("../") ? folder.replace(/[^/]*\/$/, "") + path.slice(3) : folder + path) => (files.has(at) ? sourceOfFile(files.get(at)) : null) });

async function accessFrom(fields) {
  const [keys, trust] = [[], []];
  const lines = fields.keys.value.split("\n").map((line) => line.trim()).filter((line) => line && !line.startsWith("#"));
  fields.keys.value = "";
  for (const line of lines) {
    const { what, kind, key } = await Reader.parseKey(line);
    if (what === "public" && kind.startsWith("ed25519")) trust.push(key);
    else if (what === "secret" && !kind.startsWith("ed25519")) keys.push(await Reader.keyOf(kind, key));
    else throw new Error("a reader needs secret keys that open, and public keys of signers (ed25519)");
  }
  return { keys, trust, allowUnsigned: fields.unsigned.checked };
}

// -- figures -----------------------------------------------------------------------------------------------------------

const shortName = (descriptor) => descriptor.split("/")[0].replace(/^!?(?:streamxf\.)?/, "");
const chainText = (chain) => chain.map(shortName).join("+") || "none";

// What the figures need of an item: sizes in bytes, and its chain.
function measured(checkpoint) {
  return [...checkpoint.items.values()].map((item) => {
    const elements = item.shape.reduce((product, length) => product * length, 1);
    const stored = sumOf(item.chunks.map(({ span, bytes }) => (span ? Math.min(bytes, span[1] - span[0]) : bytes))); // values share theirs
    const tensor = item.dtype !== null;
    return { item, tensor, elements: tensor ? elements : 0, raw: tensor ? Math.ceil(elements * (item.elementSize ?? 0)) : 0, stored, chain: checkpoint.chainOf(item) };
  });
}

function grouped(items, keyOf) {
  const groups = new Map();
  for (const each of items) {
    const key = keyOf(each);
    if (!groups.has(key)) groups.set(key, { key, chain: each.chain, items: 0, raw: 0, stored: 0, objects: 0 });
    const sums = groups.get(key);
    sums.items += 1;
    sums.raw += each.raw;
    sums[each.tensor ? "stored" : "objects"] += each.stored;
  }
  return [...groups.values()].sort((a, b) => b.stored + b.objects - a.stored - a.objects);
}

// The ends of the colour scale, as `scale_of` has them.
function scaleOf(items) {
  const found = items.filter(({ raw }) => raw).map(({ raw, stored }) => [stored / raw, raw]).sort((a, b) => a[0] - b[0]);
  if (!found.length) return [0, 1];
  const whole = sumOf(found.map(([, raw]) => raw));
  const quantile = (part) => {
    let sum = 0;
    return (found.find(([, raw]) => (sum += raw) >= part * whole) ?? found[found.length - 1])[0];
  };
  const [low, high] = [quantile(0.01), quantile(0.99)];
  const slack = Math.max(0.1 * (high - low), 0.025);
  const ratios = found.map(([ratio]) => ratio).filter((ratio) => low - slack <= ratio && ratio <= high + slack);
  const [first, last] = [Math.floor(Number((100 * ratios[0]).toFixed(6))), Math.ceil(Number((100 * ratios[ratios.length - 1]).toFixed(6)))];
  const spare = Math.max(0, 5 - (last - first));
  return [(first - Math.floor(spare / 2)) / 100, (last + spare - Math.floor(spare / 2)) / 100];
}

const partsOf = (name) => {
  const parts = name.split(".");
  return parts.length <= MAX_PARTS ? parts : [...parts.slice(0, MAX_PARTS - 1), parts.slice(MAX_PARTS - 1).join(".")];
};

function treeFrom(items, dtypes, chains) {
  const shown = new Set([...items].sort((a, b) => b.stored - a.stored).slice(0, MAX_ITEMS));
  const root = { name: "", children: [], items: [], inner: new Map() };
  const moduleAt = (parts, make) => {
    let module = root;
    for (const part of parts) {
      if (!module.inner.has(part)) {
        if (!make) break;
        const child = { name: printed(part), children: [], items: [], inner: new Map() };
        module.inner.set(part, child);
        module.children.push(child);
      }
      module = module.inner.get(part);
    }
    return module;
  };
  for (const each of items) {
    if (!shown.has(each)) continue;
    const parts = partsOf(each.item.name);
    const about = each.tensor ? [dtypes.indexOf(each.item.dtype), each.item.shape, each.raw] : [-1, [], 0];
    moduleAt(parts.slice(0, -1), true).items.push([printed(parts[parts.length - 1]), ...about, each.stored, each.item.chunks.length, chains.indexOf(chainText(each.chain))]);
  }
  for (const each of items) {
    if (shown.has(each)) continue;
    const module = moduleAt(partsOf(each.item.name).slice(0, -1), false);
    const more = each.tensor ? [1, each.raw, each.stored, 0, 0, 0] : [1, 0, 0, each.stored, 0, 0];
    module.rest = (module.rest ?? [0, 0, 0, 0, 0, 0]).map((sum, i) => sum + more[i]);
  }
  return { root, left: items.length - shown.size };
}

// Layers on top of one another, as `stacks_of` finds them.
function stacksOf(items) {
  const isNumber = (part) => /^(?:0|[1-9][0-9]{0,8})$/.test(part);
  const named = items.filter(({ tensor }) => tensor).map((each) => ({ each, parts: partsOf(each.item.name) }));
  const places = (parts) => parts.map((part, place) => ({ part, place })).filter(({ part }) => isNumber(part)).slice(0, 4);
  const holderOf = (parts, place) => parts.slice(0, place).join(".");
  const numbers = new Map();
  for (const { parts } of named)
    for (const { part, place } of places(parts)) {
      const holder = holderOf(parts, place);
      numbers.set(holder, (numbers.get(holder) ?? new Set()).add(part));
    }
  const stacks = new Map();
  for (const { each, parts } of named) {
    const found = places(parts).find(({ place }) => numbers.get(holderOf(parts, place)).size > 1);
    if (!found) continue;
    const holder = holderOf(parts, found.place);
    const role = parts.slice(found.place + 1).map((part) => (isNumber(part) ? "*" : part)).join(".");
    if (!stacks.has(holder)) stacks.set(holder, { name: holder, cells: [] });
    stacks.get(holder).cells.push({ layer: Number(found.part), role, each });
  }
  const size = (stack) => sumOf(stack.cells.map(({ each }) => each.stored));
  return [...stacks.values()].sort((a, b) => size(b) - size(a)).slice(0, MAX_STACKS).map(drawnStack);
}

function drawnStack({ name, cells }) {
  const layers = [...new Set(cells.map(({ layer }) => layer))].sort((a, b) => a - b);
  const step = Math.ceil(layers.length / MAX_LAYERS);
  const columnOf = new Map(layers.map((layer, i) => [layer, Math.floor(i / step)]));
  const columns = [];
  for (let i = 0; i < layers.length; i += step) columns.push([...new Set([layers[i], layers[Math.min(i + step, layers.length) - 1]])].join("-"));
  const sizes = new Map();
  for (const { role, each } of cells) sizes.set(role, (sizes.get(role) ?? 0) + each.raw);
  const least = SMALL_ROLE * sumOf([...sizes.values()]);
  const small = [...sizes].filter(([, raw]) => raw < least).map(([role]) => role);
  const kept = new Set([...sizes].sort((a, b) => b[1] - a[1]).slice(0, MAX_ROLES).map(([role]) => role));
  if (small.length > 1) small.forEach((role) => kept.delete(role));
  const roles = [...sizes.keys()].filter((role) => kept.has(role));
  const rowOf = new Map(roles.map((role, i) => [role, i]));
  const sums = new Map();
  for (const { layer, role, each } of cells) {
    const place = [rowOf.get(role) ?? roles.length, columnOf.get(layer)];
    const cell = sums.get(String(place)) ?? [...place, 0, 0, 0];
    sums.set(String(place), [...place, cell[2] + 1, cell[3] + each.raw, cell[4] + each.stored]);
  }
  const more = sizes.size - roles.length;
  return { name: printed(name) || "layers", layers: columns, roles: [...roles.map((role) => printed(role) || "tensor"), ...(more ? [`${more} small ones`] : [])], cells: [...sums.values()] };
}

// -- the page ----------------------------------------------------------------------------------------------------------

function fill(checkpoint, files, label, authentic) {
  const items = measured(checkpoint);
  const tensors = items.filter(({ tensor }) => tensor);
  const [byDtype, byChain] = [grouped(tensors, ({ item }) => item.dtype), grouped(items, ({ chain }) => chainText(chain))];
  const [dtypes, chains] = [byDtype.map(({ key }) => key), byChain.map(({ key }) => key)];
  const { root, left } = treeFrom(items, dtypes, chains);
  const slim = (module) => ({ name: module.name, children: module.children.map(slim), items: module.items, ...(module.rest ? { rest: module.rest } : {}) });
  const data = { dtypes: dtypes.map((dtype) => printed(dtype)), chains: chains.map((chain) => printed(chain)), tree: slim(root), left_out: left, scale: scaleOf(items), values: false, stacks: stacksOf(items) };
  $("#data").textContent = JSON.stringify(data);
  const [stored, raw, kept] = [sumOf(items.map((each) => each.stored)), sumOf(items.map((each) => each.raw)), sumOf(tensors.map((each) => each.stored))];
  const tile = (name, value, more) => element("div", { class: "figure" }, element("dt", {}, name), element("dd", {}, value), element("dd", { class: "more" }, more));
  $(".figures").replaceChildren(
    tile("Stored", sizeText(stored), counted(checkpoint.index.files.length + 1, "file")),
    tile("In memory", sizeText(raw), `${sumOf(tensors.map((each) => each.elements)).toLocaleString("en-US")} elements`),
    tile("Stored / in memory", raw ? (kept / raw).toFixed(3) : "-", raw ? `${sizeText(Math.abs(raw - kept))} ${raw >= kept ? "less" : "more"}` : "no tensors"),
    tile("Tensors", tensors.length.toLocaleString("en-US"), counted(sumOf(tensors.map(({ item }) => item.chunks.length)), "shard")),
    tile("Other objects", (items.length - tensors.length).toLocaleString("en-US"), sizeText(stored - kept)),
  );
  $(".pair").replaceChildren(tableOf("dtype", byDtype), tableOf("chain", byChain));
  fillFacts(checkpoint, authentic);
  const name = label.replace(/\/$/, "").split("/").pop() || "checkpoint";
  $("h1").textContent = printed(name);
  document.title = `${printed(name)} - streamxf`;
  $(".path").replaceChildren(element("span", { class: "badge" }, "streamxf"), element("span", {}, printed(label)), element("a", { href: "" }, "Open another"));
  $("#where .hint").textContent += left ? ` ${counted(left, "smaller item")} of this checkpoint are added up by module.` : "";
  for (const part of document.querySelectorAll("main > *")) part.hidden = ["open", "values", "objects"].includes(part.id);
}

function tableOf(heading, groups) {
  const row = (tag, cells) => element("tr", {}, ...cells.map(([text, kind], i) => element(i ? tag : "th", i ? { class: kind ?? "" } : { scope: tag === "th" ? "col" : "row" }, text)));
  const body = groups.map(({ key, items, raw, stored, objects }) => row("td", [[printed(key)], [items.toLocaleString("en-US")], [sizeText(raw), "wide"], [sizeText(stored + objects)], [raw ? (stored / raw).toFixed(3) : "-"]]));
  const head = row("th", [[heading], ["items"], ["in memory", "wide"], ["stored"], ["ratio"]]);
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

function fillFacts({ index }, authentic) {
  const { root } = index;
  const facts = [
    ["Format", ["streamxf"]],
    ["Written by", [...root.get("packages")].map(([name, version]) => `${name} ${version}`)],
    ["Save", [root.get("save_id")]],
    ["Opened by keys", (index.wrapped?.entries ?? []).map(({ kind, id }) => `${kind}:${id}`)],
    ["Signed by", index.signers],
    ["Run", root.has("run") ? [`${root.get("run").get("name")}, step ${root.get("run").get("step")}`] : []],
    ["Notes", authentic ? [] : [index.signers.length ? "The signature was not checked." : "Nothing here is authenticated."]],
  ];
  $(".facts").replaceChildren(...facts.flatMap(([label, lines]) => (lines.length ? [element("dt", {}, label), ...lines.slice(0, 40).map((line) => element("dd", {}, printed(line)))] : [])));
}

// -- the values of a tensor ----------------------------------------------------------------------------------------------

const [ROWS, COLUMNS] = [24, 12];

function showValues(checkpoint, item) {
  const { shape } = item;
  const card = $("#values");
  card.hidden = false;
  const starts = shape.map((length, i) => element("input", { type: "number", min: 0, max: Math.max(0, length - 1), value: 0, "aria-label": `from, dimension ${i}` }));
  const table = element("table", {});
  const said = element("p", { class: "hint", role: "status" });
  const draw = async () => {
    const offset = starts.map((start, i) => Math.min(Math.max(0, Math.floor(Number(start.value)) || 0), Math.max(0, shape[i] - 1)));
    const box = shape.map((length, i) => Math.min(length - offset[i], i === shape.length - 1 ? COLUMNS : i === shape.length - 2 ? ROWS : 1));
    try {
      const numbers = Reader.numbersOf(item.dtype, await checkpoint.elements(item, offset, box));
      const wide = box.length ? box[box.length - 1] : 1;
      const [row, column] = [offset[shape.length - 2] ?? null, offset[shape.length - 1] ?? 0];
      const head = element("tr", {}, element("th", {}), ...Array.from({ length: wide }, (_, i) => element("th", { scope: "col" }, String(column + i))));
      const rows = Array.from({ length: wide ? numbers.length / wide : 0 }, (_, r) =>
        element("tr", {}, element("th", { scope: "row" }, row === null ? "" : String(row + r)), ...numbers.slice(r * wide, (r + 1) * wide).map((value) => element("td", {}, numberText(value)))));
      table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
      said.textContent = `[${offset.map((from, i) => (box[i] === 1 ? from : `${from}:${from + box[i]}`)).join(", ")}] of ${shape.join(" × ") || "a scalar"}`;
    } catch (error) {
      table.replaceChildren();
      said.textContent = printed(error.message);
    }
  };
  starts.forEach((start) => start.addEventListener("change", draw));
  const heading = element("div", { class: "head" }, element("h2", {}, printed(item.name)), element("span", { class: "quiet" }, printed(item.dtype)), element("div", { class: "controls" }, ...starts));
  card.replaceChildren(heading, element("div", { class: "scroll" }, table), said);
  card.scrollIntoView({ block: "nearest" });
  return draw();
}

const numberText = (value) => (typeof value !== "number" || Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6))));

// -- objects that are values -----------------------------------------------------------------------------------------------

const MAX_SHOWN = 500;

function valueText(value) {
  const all = (values) => values.map(valueText).join(", ");
  if (value instanceof Reader.Tuple) return value.length === 1 ? `(${all([...value])},)` : `(${all([...value])})`;
  if (Array.isArray(value)) return `[${all(value)}]`;
  if (value instanceof Map) return `{${[...value].map(([key, each]) => `${valueText(key)}: ${valueText(each)}`).join(", ")}}`;
  if (value instanceof Uint8Array) return `h'${Reader.hex(value)}'`;
  if (typeof value === "number") return Number.isInteger(value) && Math.abs(value) < 1e16 ? `${Object.is(value, -0) ? "-0" : value}.0` : String(value);
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

async function showObjects(checkpoint) {
  const objects = [...checkpoint.items.values()].filter(({ dtype }) => dtype === null);
  const rows = [];
  for (const item of objects.slice(0, MAX_SHOWN)) {
    const shown = await checkpoint.value(item).then(valueText, (error) => error.message);
    rows.push(element("tr", {}, element("th", { scope: "row" }, printed(item.name)), element("td", {}, printed(shown, 2000))));
  }
  const more = objects.length > MAX_SHOWN ? [element("p", { class: "hint" }, `${counted(objects.length - MAX_SHOWN, "more object")}`)] : [];
  const card = $("#objects");
  card.hidden = !objects.length;
  card.replaceChildren(element("div", { class: "head" }, element("h2", {}, "Other objects")), element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...rows))), ...more);
}

// -- what is opened ------------------------------------------------------------------------------------------------------

async function show(files, { folder, rank }, label, access) {
  const checkpoint = await Reader.Checkpoint.open(folderOf(files, folder), { ...access, rank });
  fill(checkpoint, files, label, checkpoint.index.authentic);
  drawCheckpoint();
  await showObjects(checkpoint);
  const byPath = new Map();
  for (const item of checkpoint.items.values()) {
    const path = partsOf(item.name).map((part) => printed(part)).join(".");
    if (item.dtype !== null && !byPath.has(path)) byPath.set(path, item);
  }
  const open = (event) => {
    const name = event.target.closest("tbody tr")?.querySelector("th").firstChild.textContent;
    if (byPath.has(name)) showValues(checkpoint, byPath.get(name));
  };
  const table = $("#tensors");
  const focusable = () => table.querySelectorAll("tbody th").forEach((cell) => cell.setAttribute("tabindex", 0));
  focusable();
  new MutationObserver(focusable).observe(table.tBodies[0], { childList: true });
  table.classList.add("opens");
  table.addEventListener("click", open);
  table.addEventListener("keydown", (event) => event.key === "Enter" && open(event));
}

function offer(files, label) {
  const found = checkpointsIn(files);
  const fields = { keys: $("#keys"), unsigned: $("#unsigned") };
  const said = $("#said");
  if (!found.length) {
    said.textContent = "There is no .metadata in this folder, and no __<rank>.metadata.";
    return;
  }
  const open = async (chosen) => {
    said.textContent = "Reading...";
    try {
      await show(files, chosen, `${label}/${chosen.folder}`, await accessFrom(fields));
      said.textContent = "";
    } catch (error) {
      $("#open").hidden = false;
      said.textContent = printed(error.message.replace(/^[A-Z]\d+: /, ""), 1000); // without the rule's number
    }
  };
  said.textContent = `${counted(found.length, "checkpoint")} in ${printed(label)}:`;
  $("#found-here").replaceChildren(...found.slice(0, 1000).map((each) => {
    const button = element("button", { type: "button", class: "plain" }, `Open ${printed(each.path.replace(/(^|\/)\.metadata$/, "") || label)}`);
    button.addEventListener("click", () => open(each));
    return button;
  }));
  if (found.length === 1 && !fields.keys.value) open(found[0]);
}

function start() {
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  for (const part of document.querySelectorAll("main > *")) part.hidden = part.id !== "open";
  for (const id of ["objects", "values"]) $("#tensors").closest("section").after(Object.assign(element("section", { class: "card", id }), { hidden: true }));
  $("#folder").addEventListener("change", ({ target }) => {
    const files = new Map([...target.files].slice(0, MAX_FILES).map((file) => [file.webkitRelativePath.split("/").slice(1).join("/"), file]));
    offer(files, target.files[0]?.webkitRelativePath.split("/")[0] ?? "");
  });
  const place = $("#open");
  place.addEventListener("dragover", (event) => event.preventDefault());
  place.addEventListener("drop", async (event) => {
    event.preventDefault();
    const [item = {}] = event.dataTransfer.items;
    try {
      const folder = item.getAsFileSystemHandle ? await item.getAsFileSystemHandle() : item.webkitGetAsEntry?.();
      if (folder?.kind === "directory" || folder?.isDirectory) offer(await filesBelow(folder), folder.name);
      else $("#said").textContent = "Drop a folder.";
    } catch (error) {
      $("#said").textContent = printed(error.message);
    }
  });
}

start();
