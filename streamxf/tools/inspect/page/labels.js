// Names on the treemap: those of modules on pills at their corners, those of tiles in their middles.

const LABELLED = 0.6; // modules up to this part of what is around them have their names on them; larger ones are nearly all of it

const isInside = (node, ancestor) => node.parent !== null && within(node.parent, ancestor);

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
