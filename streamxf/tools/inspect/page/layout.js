// Where tiles lie: a squarified treemap (Bruls, Huizing and van Wijk), in which layers stand in their order, in strips
// (Bederson, Shneiderman and Wattenberg). Areas are exact: gaps are strokes, labels lie on the tiles, and nothing takes
// room of its own.

const MOST_STRIPS = 120;
const MIN_TILE = 64; // square pixels; what is smaller is drawn with its neighbours

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

// Rows from top to bottom, each from left to right, of about equal weight; as many as make the tiles most square.
function strips(nodes, value, box, place) {
  const scale = (box.w * box.h) / nodes.reduce((sum, node) => sum + value(node), 0);
  const high = (row) => (row.reduce((sum, node) => sum + value(node), 0) * scale) / box.w;
  const squareness = (row, thick) => row.reduce((sum, node) => sum + Math.max((value(node) * scale) / thick ** 2, thick ** 2 / (value(node) * scale)), 0);
  let [best, least] = [null, Infinity];
  for (let count = 1; count <= Math.min(nodes.length, MOST_STRIPS); count += 1) {
    const rows = inRows(nodes, value, count);
    const now = rows.reduce((sum, row) => sum + squareness(row, high(row)), 0);
    if (now < least) [best, least] = [rows, now];
  }
  let y = box.y;
  for (const row of best) {
    const thick = high(row);
    let x = box.x;
    for (const node of row) {
      const length = (value(node) * scale) / thick;
      place(node, { x, y, w: length, h: thick });
      x += length;
    }
    y += thick;
  }
}

function inRows(nodes, value, count) {
  const total = nodes.reduce((sum, node) => sum + value(node), 0);
  const rows = Array.from({ length: count }, () => []);
  let before = 0;
  for (const node of nodes) {
    rows[Math.min(count - 1, Math.floor(((before + value(node) / 2) / total) * count))].push(node);
    before += value(node);
  }
  return rows.filter((row) => row.length);
}

// Layers: modules named by numbers, most of which are within a factor of three of the median size.
function areLayers(nodes, value) {
  if (nodes.length < 2 || !nodes.every((node) => /^\d+$/.test(node.name))) return false;
  const sizes = nodes.map(value).sort((a, b) => a - b);
  const middle = sizes[sizes.length >> 1];
  return sizes.filter((size) => size > middle / 3 && size < middle * 3).length > nodes.length / 2;
}

// Tiles and the edges of modules around them, outer ones first.
function layOut(node, box, out) {
  const value = weigh[view.area];
  const children = node.children.filter((child) => value(child) > 0).sort((a, b) => value(b) - value(a));
  const layers = areLayers(children, value);
  const scale = (box.w * box.h) / children.reduce((sum, child) => sum + value(child), 0);
  let shown = children.findIndex((child) => value(child) * scale < MIN_TILE);
  if (shown < 0 || shown === children.length - 1) shown = children.length;
  const small = children.slice(shown);
  children.splice(shown, small.length);
  if (layers) children.sort((a, b) => Number(a.name) - Number(b.name));
  if (small.length) children.push(together(node, small));
  (layers ? strips : squarify)(children, value, box, (child, inner) => {
    const parts = child.kind === "module" ? child.children.length : 0;
    if (parts > 1 && Math.min(inner.w, inner.h) > 9) out.edges.push({ node: child, box: inner });
    if (parts === 1 || (parts && Math.min(inner.w, inner.h) > 9)) layOut(child, inner, out);
    else out.tiles.push({ node: child, box: inner });
  });
  return out;
}

function together(parent, nodes) {
  const sum = { kind: "rest", parent, children: nodes, ...noSums() };
  for (const node of nodes) addTo(sum, node);
  sum.name = `${count(nodes.length)} smaller`;
  sum.path = `${parent.path ? `${parent.path}: ` : ""}${sum.name}`;
  return sum;
}
