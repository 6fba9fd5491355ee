// Where tiles lie: a squarified treemap (Bruls, Huizing and van Wijk). Areas are exact: gaps are strokes, labels lie on the
// tiles, and nothing takes room of its own.

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
