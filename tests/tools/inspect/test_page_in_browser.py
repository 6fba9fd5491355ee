"""The page in a real browser: what is drawn, what can be read, and that nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import pstdev

import pytest

pytest.importorskip("selenium", reason="Selenium is not installed: pip install selenium")

from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from streamxf.format.items import Item
from streamxf.formats.contents import Format
from streamxf.tools.inspect.inspect import Summary, TensorStatistics
from streamxf.tools.inspect.page.page import html_page
from tests.tools.inspect.browser import HOW_TO, browser, installed, requests, show, wait_in
from tests.tools.inspect.made import contents, statistics, tensor, thing, transformer, values

pytestmark = pytest.mark.skipif(installed() is None, reason=HOW_TO)

HOSTILE = "</script><img src=x onerror=window.pwned=1><svg onload=window.pwned=1>"
# In the page's own coordinates: what a tile is, and every text on the tiles.
TILES = """
return [...document.querySelectorAll('.tile')].map((tile) => {
  const rect = tile.querySelector('rect');
  const at = (name) => Number(rect.getAttribute(name));
  return {path: tile.dataset.path, bytes: Number(tile.dataset.bytes), fill: rect.getAttribute('fill'),
    x: at('x'), y: at('y'), width: at('width'), height: at('height'), faded: tile.classList.contains('faded')};
});
"""
TEXTS = """
return [...document.querySelectorAll('#treemap text')].map((text) => {
  const box = text.getBoundingClientRect(), home = document.querySelector('#treemap').getBoundingClientRect();
  return {text: text.textContent, kind: text.getAttribute('class'), fill: getComputedStyle(text).fill,
    size: parseFloat(getComputedStyle(text).fontSize),
    x: box.x - home.x, y: box.y - home.y, width: box.width, height: box.height};
});
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chrome]:
    with browser() as driver:
        yield driver


@pytest.fixture
def opened(chromium: Chrome, tmp_path: Path) -> Iterator[Opened]:
    """Opens pages; at the end nothing may have been fetched but they, and no error been told on the console."""
    chromium.get("about:blank")
    requests(chromium)
    chromium.get_log("browser")
    opening = Opened(chromium, tmp_path / "page.html")
    yield opening
    assert chromium.get_log("browser") == []
    assert set(requests(chromium)) <= {opening.file.as_uri()}
    assert chromium.execute_script("return performance.getEntriesByType('resource').length") == 0


class Opened:
    def __init__(self, driver: Chrome, file: Path) -> None:
        self.driver = driver
        self.file = file

    def __call__(
        self, entries: list[Item], kind: Format = Format.STREAMXF, found: TensorStatistics | None = None, **view: object
    ) -> Chrome:
        self.file.write_text(html_page(Summary.of(contents(entries, kind), found)), encoding="utf-8")
        show(self.driver, self.file, **view)
        return self.driver


def all_of(driver: Chrome, selector: str) -> list[WebElement]:
    return driver.find_elements(By.CSS_SELECTOR, selector)


def one(driver: Chrome, selector: str) -> WebElement:
    return driver.find_element(By.CSS_SELECTOR, selector)


def hover(driver: Chrome, element: WebElement) -> None:
    """Move the pointer there."""
    driver.execute_async_script(
        "arguments[0].scrollIntoView({block: 'center'});"
        "requestAnimationFrame(() => requestAnimationFrame(arguments[1]));",
        element,
    )
    actions = ActionChains(driver, duration=0)
    actions.w3c_actions.pointer_action.move_to_location(1, 1)  # it may lie there from the last page
    actions.move_to_element(element).perform()


def tip_at(driver: Chrome, element: WebElement) -> str:
    """What the page tells about it."""
    hover(driver, element)
    tip = one(driver, "#tip")
    wait_in(driver, lambda _: tip.is_displayed())
    return tip.text


def pick(driver: Chrome, name: str, value: str) -> None:
    """Choose one of several round buttons, by its label."""
    one(driver, f"input[name='{name}'][value='{value}']").find_element(By.XPATH, "..").click()


def luminance(colour: str) -> float:
    """WCAG's, of ``#rrggbb`` or ``rgb(r, g, b)``."""
    if colour.startswith("#"):
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    else:
        channels = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def inside(small: dict, large: dict, slack: float = 1) -> bool:
    return (
        small["x"] >= large["x"] - slack
        and small["y"] >= large["y"] - slack
        and small["x"] + small["width"] <= large["x"] + large["width"] + slack
        and small["y"] + small["height"] <= large["y"] + large["height"] + slack
    )


def apart(one: dict, other: dict, slack: float = 1) -> bool:
    return (
        one["x"] + one["width"] <= other["x"] + slack
        or other["x"] + other["width"] <= one["x"] + slack
        or one["y"] + one["height"] <= other["y"] + slack
        or other["y"] + other["height"] <= one["y"] + slack
    )


@pytest.mark.parametrize("layers", [2, 12])
@pytest.mark.parametrize("area", ["stored", "raw"])
def test_areas_are_exact(opened: Opened, layers: int, area: str):
    driver = opened(transformer(layers))
    pick(driver, "area", area)
    tiles = driver.execute_script(TILES)
    summary = Summary.of(contents(transformer(layers)))
    total = (summary.total.stored_bytes if area == "stored" else summary.total.raw_bytes) + summary.total.object_bytes
    assert sum(tile["bytes"] for tile in tiles) == total
    home = one(driver, "#treemap svg").size
    for tile in tiles:
        wanted = tile["bytes"] / total * home["width"] * home["height"]
        assert tile["width"] * tile["height"] == pytest.approx(wanted, rel=1e-6)
        assert inside(tile, {"x": 0, "y": 0} | home, 1e-6)
    for number, tile in enumerate(tiles):
        assert all(apart(tile, other, 1e-6) for other in tiles[:number])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("colour", ["ratio", "dtype"])
def test_what_is_written_on_tiles_can_be_read(opened: Opened, theme: str, colour: str):
    driver = opened(transformer(12), theme=theme)
    pick(driver, "colour", colour)
    tiles = driver.execute_script(TILES)
    texts = driver.execute_script(TEXTS)
    labels = [text for text in texts if text["kind"] == "tile-label"]
    assert any("embed_tokens" in text["text"] for text in labels)
    assert any(text["text"] == "model.layers.7" or text["text"] == "layers.7" for text in texts)
    for number, text in enumerate(texts):
        assert text["size"] >= 11
        assert all(apart(text, other) for other in texts[:number]), text
        if text["kind"] == "pill-text":
            continue
        (tile,) = (tile for tile in tiles if inside(text, tile))
        assert contrast(text["fill"], tile["fill"]) >= 4.5, (text, tile)


def test_the_page_is_light_or_dark(opened: Opened):
    for theme, dark in (("light", False), ("dark", True)):
        driver = opened(transformer(), theme=theme)
        for wanted in (dark, not dark):
            colours = driver.execute_script(
                "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
            )
            assert (luminance(colours[0]) < 0.05) is wanted
            assert contrast(*colours) > 10
            one(driver, "#theme").click()


def test_a_tile_tells_about_itself(opened: Opened):
    driver = opened(transformer())
    tip = one(driver, "#tip")
    assert not tip.is_displayed()
    tile = one(driver, "[data-path='model.layers.3.mlp.up_proj.weight']")
    lines = tip_at(driver, tile).splitlines()
    assert lines[0] == "model.layers.3.mlp.up_proj.weight"
    assert dict(zip(lines[1::2], lines[2::2], strict=True)) == {
        "dtype": "bfloat16",
        "shape": "256 \u00d7 64",
        "in memory": "32.0 KiB",
        "stored": "23.8 KiB",
        "ratio": "0.745",
        "share of all": "8.8 %",
        "chain": "floatzip+checksum",
    }
    assert "ratio 0.745" in (tile.get_attribute("aria-label") or "")
    hover(driver, one(driver, "h1"))
    assert not tip.is_displayed()


def test_looking_into_a_module_and_back(opened: Opened):
    driver = opened(transformer())
    everything = len(all_of(driver, ".tile"))
    one(driver, "[data-path='model.layers.3.mlp.up_proj.weight']").click()
    assert one(driver, "#crumbs").text.split("\n")[-1] == "model"
    one(driver, "[data-path='model.layers.3.mlp.up_proj.weight']").click()
    one(driver, "[data-path='model.layers.3.mlp.up_proj.weight']").click()
    paths = {tile["path"] for tile in driver.execute_script(TILES)}
    assert paths == {entry.name for entry in transformer() if ".layers.3." in entry.name}
    all_of(driver, "#crumbs button")[0].click()
    assert len(all_of(driver, ".tile")) == everything


def test_by_keyboard_alone(opened: Opened):
    driver = opened(transformer())
    first = one(driver, ".tile[tabindex='0']")
    driver.execute_script("arguments[0].focus()", first)
    seen = set()
    for arrow in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ARROW_RIGHT):
        driver.switch_to.active_element.send_keys(arrow)
        seen.add(driver.switch_to.active_element.get_attribute("data-path"))
        assert one(driver, "#tip").is_displayed()
    assert len(seen) > 2
    assert len(all_of(driver, ".tile[tabindex='0']")) == 1
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert all_of(driver, "#crumbs button")
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not all_of(driver, "#crumbs button")


def test_layers_side_by_side(opened: Opened):
    driver = opened(transformer(8))
    cells = all_of(driver, ".cell")
    assert len(cells) == (8 + 1) * (6 + 1)
    up = all_of(driver, ".cell[data-role='mlp.up_proj.weight']")
    ratios = [float(cell.get_attribute("data-ratio")) for cell in up[:8]]
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(0.67, abs=0.001)
    shades = [luminance(cell.find_element(By.CSS_SELECTOR, "rect").get_attribute("fill")) for cell in up[:8]]
    assert shades == sorted(shades)
    assert len(set(shades)) == 8
    assert tip_at(driver, up[5]).startswith("mlp.up_proj.weight, layer 5\n")
    assert one(driver, "#heat-legend").text.split() == ["Stored", "/", "in", "memory", "0.66", "0.78", "above", "0.78"]
    pick(driver, "metric", "stored")
    assert "KiB" in one(driver, "#heat-legend").text


# Every mark that shows a ratio, with its colour: tiles, cells, and dots in the list.
RATIOS = """
const probe = document.body.appendChild(document.createElement('i'));
const rgb = (fill) => {
  probe.style.color = fill;
  return getComputedStyle(probe).color;
};
const drawn = (mark) => [rgb(mark.firstChild.getAttribute('fill')), Boolean(mark.querySelector('.stripes'))];
const found = [];
for (const tile of document.querySelectorAll('.tile')) {
  const ratio = /ratio ([0-9.]+)/.exec(tile.getAttribute('aria-label'));
  if (ratio) found.push(['tile', ratio[1], ...drawn(tile)]);
}
for (const cell of document.querySelectorAll('.cell:not(.none)'))
  found.push(['cell', Number(cell.dataset.ratio).toFixed(3), ...drawn(cell)]);
for (const dot of document.querySelectorAll('.dot')) {
  const style = getComputedStyle(dot);
  found.push(['dot', dot.parentNode.textContent, style.backgroundColor, style.backgroundImage !== 'none']);
}
probe.remove();
return found;
"""


def test_one_ratio_has_one_colour_on_the_whole_page(opened: Opened):
    # three stacks of their own ranges, and each of them with some ratios of the others
    entries = [tensor(f"a.{i}.w", (64, 64), 0.60 + i / 100) for i in range(8)]
    entries += [tensor(f"b.{i}.w", (32, 32), 0.64 + i / 20) for i in range(8)]
    driver = opened([*entries, tensor("c.w", (8, 8), 0.65), tensor("c.v", (64, 64), 0.62)])
    found = driver.execute_script(RATIOS)
    one(driver, "#stack option[value='1']").click()
    found += driver.execute_script(RATIOS)
    assert {kind for kind, *_ in found} == {"tile", "cell", "dot"}
    colours: dict[str, set[str]] = {}
    for _, ratio, colour, _ in found:
        colours.setdefault(ratio, set()).add(colour)
    assert len(colours) > 12
    # three digits are shown: the last one may hide the difference of a rounded channel
    for ratio, several in colours.items():
        channels = [[int(part) for part in re.findall("[0-9]+", colour)] for colour in several]
        assert all(max(column) - min(column) <= 2 for column in zip(*channels, strict=True)), (ratio, several)


def test_what_lies_beyond_the_scale_looks_like_it(opened: Opened):
    entries = [tensor(f"a.{i}.w", (200, 200), 0.66 + i / 100) for i in range(8)]
    entries += [tensor(f"a.{i}.b", (40,), 2.0 + i / 10) for i in range(8)] + [tensor("tiny", (40, 2), 0.3)]
    driver = opened(entries)
    found = driver.execute_script(RATIOS)
    sides = {"inside": set(), "below": set(), "above": set()}
    for _, ratio, colour, striped in found:
        side = "below" if float(ratio) < 0.66 else "above" if float(ratio) > 0.73 else "inside"
        assert striped is (side != "inside"), ratio
        sides[side].add(colour)
    assert len(sides["below"]) == len(sides["above"]) == 1
    assert not sides["inside"] & (sides["below"] | sides["above"])
    legend = one(driver, "#treemap-legend").text
    assert "below 0.66" in legend
    assert "above 0.73" in legend
    assert "below" not in one(driver, "#heat-legend").text
    assert "above 0.73" in one(driver, "#heat-legend").text
    uniform = opened([tensor(f"a.{i}.w", (64, 64), 0.7) for i in range(3)])
    assert "above" not in one(uniform, "#treemap-legend").text
    assert not all_of(uniform, ".stripes")


# Each cell's text with its own box and that of the cell.
CELLS = """
const box = (element) => {
  const {x, y, width, height} = element.getBoundingClientRect();
  return {x, y, width, height};
};
return [...document.querySelectorAll('.cell:not(.none)')].map((cell) => {
  const text = cell.querySelector('text');
  const found = {role: cell.dataset.role, where: cell.dataset.where, box: box(cell.firstChild)};
  return {...found, fill: cell.firstChild.getAttribute('fill'), text: text && text.textContent, at: text && box(text),
    ink: text && text.getAttribute('fill'), size: text && parseFloat(getComputedStyle(text).fontSize)};
});
"""
# What has more in it than it shows, and what reaches out of a window.
CUT = """
return [...document.querySelectorAll('body *')].filter((element) => element.clientWidth
  && element.scrollWidth > element.clientWidth + 1 && !(element instanceof SVGElement)
  && !['SELECT', 'OPTION'].includes(element.tagName)).map((element) => element.outerHTML.slice(0, 80));
"""
BEYOND = """
return [...document.querySelectorAll('main *, header *')].filter((element) =>
  element.getBoundingClientRect().right > innerWidth + 1).map((element) => element.outerHTML.slice(0, 80));
"""


@pytest.mark.parametrize("width", [390, 760, 1280])
@pytest.mark.parametrize("metric", ["ratio", "stored", "std"])
@pytest.mark.parametrize("layers", [4, 32])
def test_sums_can_be_read(opened: Opened, width: int, metric: str, layers: int):
    entries = transformer(layers, width=128)
    driver = opened(entries, found=values(entries), width=width)
    pick(driver, "metric", metric)
    cells = driver.execute_script(CELLS)
    sums = [cell for cell in cells if "all" in (cell["role"], cell["where"].removesuffix(" layers"))]
    assert len(sums) == layers + 6 + 1
    for cell in sums:
        assert cell["text"], cell
    for cell in cells:
        if cell["text"]:
            assert inside(cell["at"], cell["box"]), cell
            assert contrast(cell["ink"], cell["fill"]) >= 4.5, cell
            assert cell["size"] >= 11
    (everything,) = (cell for cell in sums if cell["role"] == "all" and cell["where"] == "all layers")
    if metric == "stored":
        stored = sum(entry.stored_bytes for entry in entries if ".layers." in entry.name)
        sizes = [f"{stored / 2**20:.1f} MiB", f"{stored / 2**20:.1f}M", f"{stored / 2**10:.1f} KiB"]
        assert everything["text"] in [*sizes, f"{stored / 2**10:.0f}K"]


def test_layers_are_laid_out_in_their_order(opened: Opened):
    """As one reads: row by row, each from the left; also where the checkpoint has 10 after 1."""
    entries = transformer(24)
    driver = opened([entries[0], *sorted(entries[1:], key=lambda entry: entry.name)])
    found: dict[int, dict] = {}
    for tile in driver.execute_script(TILES):
        if match := re.match(r"model\.layers\.([0-9]+)\.", tile["path"]):
            box = found.setdefault(int(match[1]), dict(tile))
            box["x"], box["y"] = min(box["x"], tile["x"]), min(box["y"], tile["y"])
    corners = [(round(found[layer]["y"]), round(found[layer]["x"])) for layer in range(24)]
    assert corners == sorted(corners)
    assert len({y for y, _ in corners}) > 1
    all_of(driver, "#tensors thead button")[4].click()  # the smallest first, of which many are as small
    names = [row.text for row in all_of(driver, "#tensors tbody th")]
    norms = [name for name in names if name.endswith("input_layernorm.weight")]
    assert norms == [f"model.layers.{layer}.input_layernorm.weight" for layer in range(24)]


def test_numbered_modules_of_unlike_sizes_are_no_layers(opened: Opened):
    entries = [tensor(f"net.{i}.w", (2**i, 64)) for i in range(10)]
    tiles = {tile["path"]: tile for tile in opened(entries).execute_script(TILES)}
    assert (tiles["net.9.w"]["x"], tiles["net.9.w"]["y"]) == (0, 0)  # the largest first, as squarifying wants it


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_off(opened: Opened, theme: str):
    entries = transformer(40, width=256)
    found = values(entries, model__layers__7__self_attn__q_proj__weight=statistics(float("nan"), 1, 2))
    driver = opened(entries, found=found, width=390, theme=theme)
    for view in ("sizes", "values"):
        pick(driver, "columns", view)
        assert driver.execute_script(CUT) == []
        assert driver.execute_script(BEYOND) == []
    for metric in ("ratio", "stored", "std"):
        pick(driver, "metric", metric)
        cells = driver.execute_script(CELLS)
        assert len(cells) == 41 * 7
        for cell in cells:
            assert cell["text"], cell
            assert inside(cell["at"], cell["box"]), cell
            assert min(cell["box"]["width"], cell["box"]["height"]) >= 18
    down = [cell["box"]["y"] for cell in cells if cell["role"] == "self_attn.q_proj.weight"]
    assert down == sorted(down)


def test_on_a_phone_many_roles_are_scrolled_beside_their_layers(opened: Opened):
    entries = [tensor(f"l.{layer}.role{role}", (64, 64)) for layer in range(6) for role in range(20)]
    driver = opened(entries, width=390)
    before = one(driver, "#heat .labels").location["x"]
    driver.execute_script("document.querySelector('#heat').scrollLeft = 10000")
    assert one(driver, "#heat .labels").location["x"] == before
    last = all_of(driver, ".cell[data-where='layer 0']")[-1].rect
    assert last["x"] + last["width"] <= 390
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390


# -- values --------------------------------------------------------------------------------------------------------


def test_values_in_the_list(opened: Opened):
    entries = transformer(4)
    broken = statistics(float("nan"), float("inf"), 1, 2, 3)
    found = values(entries, model__layers__2__mlp__up_proj__weight=broken, model__norm__weight=statistics(0, 0))
    driver = opened(entries, found=found)
    pick(driver, "columns", "values")
    headings = [heading.text for heading in all_of(driver, "#tensors thead th")]
    assert headings == [
        *["name", "dtype", "shape"],
        "NaN, Inf ↓",
        *["zeros", "min", "max", "mean", "std", "distribution"],
    ]
    rows = [
        [cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")]
        for row in all_of(driver, "#tensors tbody tr")
    ]
    assert rows[0][0].split("\n")[0].startswith("model.layers.2.mlp.up_proj.weight")
    assert "1 NaN" in rows[0][0]
    assert "1 Inf" in rows[0][0]
    assert rows[0][3:9] == ["2", "0 %", "1", "3", "2", "0.816"]
    usual = next(row for row in rows if row[0].startswith("model.embed_tokens.weight"))
    assert usual[3:9] == ["-", "1.0 %", "-0.5", "0.5", "0", "0.292"]
    (zeros,) = (row for row in rows if row[0].startswith("model.norm.weight"))
    assert "all zeros" in zeros[0]
    bars = all_of(driver, "#tensors tbody tr:nth-child(5) td.bars rect")
    assert len(bars) == 17
    one(driver, "#search").send_keys("nan")
    assert len(all_of(driver, "#tensors tbody tr")) == 1
    pick(driver, "columns", "sizes")
    assert [heading.text for heading in all_of(driver, "#tensors thead th")][-2:] == ["stored ↓", "ratio"]


def test_broken_tensors_are_framed(opened: Opened):
    entries = transformer(4)
    found = values(
        entries,
        model__layers__2__mlp__up_proj__weight=statistics(float("nan"), 1),
        model__embed_tokens__weight=statistics(0, 0),
    )
    driver = opened(entries, found=found)
    assert len(all_of(driver, "#treemap .frame.broken")) == len(all_of(driver, "#treemap .frame.zeros")) == 1
    assert len(all_of(driver, "#heat .frame.broken")) == 1
    for legend in ("#treemap-legend", "#heat-legend"):
        assert "NaN or Inf" in one(driver, legend).text
    assert "all zeros" in one(driver, "#treemap-legend").text
    assert "NaN\n1\n" in tip_at(driver, one(driver, "[data-path='model.layers.2.mlp.up_proj.weight']"))
    plain = opened(entries, found=values(entries))
    assert not all_of(plain, ".frame")
    assert "NaN" not in one(plain, "#treemap-legend").text
    assert "std" in one(plain, "#metric").text
    without = opened(entries)
    assert "std" not in one(without, "#metric").text
    assert not one(without, "#columns").is_displayed()


def test_the_deviation_of_layers(opened: Opened):
    entries = transformer(3)
    numbers = [[i, i + 2, i + 4 * (i + 1)] for i in range(3)]
    found = {f"model__layers__{i}__mlp__up_proj__weight": statistics(*each) for i, each in enumerate(numbers)}
    driver = opened(entries, found=values(entries, **found))
    pick(driver, "metric", "std")
    cells = {(cell["role"], cell["where"]): cell["text"] for cell in driver.execute_script(CELLS)}
    for layer, each in enumerate(numbers):
        assert float(cells["mlp.up_proj.weight", f"layer {layer}"]) == pytest.approx(pstdev(each), rel=0.01)
    together = [number for each in numbers for number in each]
    assert float(cells["mlp.up_proj.weight", "all layers"]) == pytest.approx(pstdev(together), rel=0.01)
    assert one(driver, "#heat-legend").text.startswith("Standard deviation")


def test_one_of_several_stacks_is_chosen(opened: Opened):
    more = [tensor(f"vision.blocks.{i}.w", (8, 8)) for i in range(3)]
    driver = opened([*transformer(8), *more])
    options = all_of(driver, "#stack option")
    assert [option.text for option in options] == ["model.layers (8)", "vision.blocks (3)"]
    options[1].click()
    assert len(all_of(driver, ".cell")) == 4 * 2


def test_without_layers_there_is_no_heat_map(opened: Opened):
    driver = opened([tensor("a", (8, 8)), thing("b")])
    assert not one(driver, "#layers").is_displayed()
    assert len(all_of(driver, ".tile")) == 2


def test_finding_and_sorting_tensors(opened: Opened):
    driver = opened(transformer(40))

    def names() -> list[str]:
        found: list[str] = driver.execute_script(
            "return [...document.querySelectorAll('#tensors tbody th')].map((row) => row.innerText)"
        )
        return found

    total = len(transformer(40)) - 1  # and an object
    assert len(names()) == 100
    assert names()[0] == "model.layers.39.mlp.up_proj.weight" or names()[0] == "model.embed_tokens.weight"
    one(driver, "#search").send_keys("LAYERS.3 up_proj bfloat16")
    wanted = [e.name for e in transformer(40) if ".layers.3" in e.name and "up_proj" in e.name]
    assert sorted(names()) == sorted(wanted)
    assert one(driver, "#found").text == f"{len(wanted)} of {total}"
    bright = {tile["path"] for tile in driver.execute_script(TILES) if not tile["faded"]}
    assert bright == set(wanted)
    one(driver, "#search").send_keys(Keys.CONTROL, "a", Keys.DELETE)
    assert one(driver, "#found").text == str(total)
    all_of(driver, "#tensors thead button")[0].click()
    assert names()[:2] == ["model.embed_tokens.weight", "model.layers.0.input_layernorm.weight"]
    assert "model.layers.10" in names()[66]  # numbers by their values
    one(driver, "#more").click()
    assert len(names()) == 200


def test_hostile_names_are_only_ever_text(opened: Opened):
    entries = [tensor(HOSTILE, (50, 50)), tensor(f"l.0.{HOSTILE}", (50, 50)), tensor(f"l.1.{HOSTILE}", (50, 50))]
    driver = opened([*entries, thing(f"o.{HOSTILE}", 5000)])
    assert driver.execute_script("return window.pwned") is None
    assert all_of(driver, "img") == []
    assert HOSTILE in [row.text for row in all_of(driver, "#tensors tbody th")]
    assert "onerror" in tip_at(driver, one(driver, ".tile"))
    assert driver.execute_script("return window.pwned") is None


def test_the_policy_keeps_the_network_away(opened: Opened):
    driver = opened(transformer())
    refused = driver.execute_async_script(
        """
        const done = arguments[0];
        const found = [];
        document.addEventListener('securitypolicyviolation', (event) => {
          found.push(event.effectiveDirective);
          if (found.length === 3) done(found);
        });
        fetch('http://127.0.0.1:9/').catch(() => null);
        new Image().src = 'http://127.0.0.1:9/x.png';
        document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.pwned = 1'}));
        """
    )
    assert sorted(refused) == ["connect-src", "img-src", "script-src-elem"]
    assert driver.execute_script("return window.pwned") is None
    driver.get_log("browser")  # the browser's own words about it
    requests(driver)  # which it refused
    driver.execute_script("performance.clearResourceTimings()")


@pytest.mark.parametrize("width", [380, 760, 1280, 2200])
def test_any_width(opened: Opened, width: int):
    driver = opened(transformer(48), width=width)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    svg = one(driver, "#treemap svg").size
    assert svg["width"] > 0.8 * min(width, 1280) - 40


def test_a_hundred_thousand_items(opened: Opened):
    entries = transformer(100, experts=250)
    entries += [tensor(f"experts.{i}.scale", (4,)) for i in range(75_000)]
    driver = opened(entries)
    assert opened.file.stat().st_size < 4 * 2**20
    assert 50 < len(all_of(driver, ".tile")) < 12_000
    assert "smaller items of this checkpoint are added up" in one(driver, "#where .hint").text
    assert len(all_of(driver, "#tensors tbody tr")) == 100


@pytest.mark.parametrize("entries", [[], [thing("a")], [tensor("empty", (0, 4))]], ids=["nothing", "object", "empty"])
def test_next_to_nothing(opened: Opened, entries: list[Item]):
    driver = opened(entries, Format.TORCH)
    assert one(driver, "h1").text == "step-1000"


def test_uncompressed_tensors_are_coloured_by_dtype(opened: Opened):
    entries = [tensor("a", (64, 64), chain=()), tensor("b", (64, 64), dtype="float32", chain=())]
    driver = opened(entries, Format.SAFETENSORS)
    assert one(driver, "#treemap-legend").text.split() == ["float32", "bfloat16"]
    fills = {tile["fill"] for tile in driver.execute_script(TILES)}
    assert len(fills) == 2
