"""The viewer in a real browser: the same figures as a page of inspect, and the same numbers as a load."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("selenium", reason="Selenium is not installed: pip install selenium")

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, Key, ZStandard
from streamxf.keys import PrivateKey, SigningKey, write_key
from streamxf.tools.inspect.page.page import page_data, viewer_page
from tests.tools.inspect.browser import HOW_TO, browser, installed, requests, show, wait_in

pytestmark = pytest.mark.skipif(installed() is None, reason=HOW_TO)

KEY = Key(bytes(range(7, 39)))
HOSTILE = "</script><img src=x onerror=window.pwned=1>"
Writer = Callable[..., Path]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chrome]:
    with browser() as driver:
        yield driver


@pytest.fixture
def viewer(chromium: Chrome, tmp_path: Path) -> Iterator[Chrome]:
    """A viewer that nothing has been opened in; at the end it has fetched nothing."""
    page = tmp_path / "viewer.html"
    page.write_text(viewer_page(), encoding="utf-8")
    chromium.get("about:blank")
    requests(chromium)
    chromium.get_log("browser")
    show(chromium, page)
    yield chromium
    assert chromium.get_log("browser") == []
    assert set(requests(chromium)) <= {page.as_uri()}
    assert chromium.execute_script("return window.pwned") is None


def save(folder: Path, chain: Any = "raw", **options: Any) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    state = {f"model.layers.{i}.mlp.w": random.normal(size=(40, 30)).astype(np.float32) for i in range(12)}
    state |= {f"model.layers.{i}.norm": np.ones(4, np.float16) for i in range(12)}
    state |= {"embed": random.normal(size=(300, 200)).astype(np.float32), "ids": np.arange(-5, 5)}
    state |= {"__proto__": np.ones((2, 2)), f"a.{HOSTILE}": np.zeros((2, 3), np.uint8), "constructor.x": np.ones(3)}
    with streamxf.CheckpointWriter(folder, chain=chain, **options) as writer:
        for name, value in state.items():
            writer[name] = value
        writer["config"] = {"step": 100, "lr": (0.9, -0.0), "text": HOSTILE, "none": [None, True, b"\xff", 2**63, {}]}
        writer["pickled"] = {"a": {1, 2}}
    return state


def choose(driver: Chrome, folder: Path, keys: str = "", *, unsigned: bool = False) -> None:
    """Choose a folder, and open the only checkpoint in it."""
    driver.execute_script("arguments[0].value = arguments[1]", one(driver, "#keys"), keys)
    driver.execute_script("for (const of of ['said', 'found-here']) document.getElementById(of).replaceChildren()")
    if unsigned:
        one(driver, "#unsigned").click()
    one(driver, "#folder").send_keys(str(folder))
    if keys:
        wait_in(driver, lambda _: driver.find_elements(By.CSS_SELECTOR, "#found-here button"))
        one(driver, "#found-here button").click()
    # not the text that is shown: nothing of this part of the page is, once there is something to see
    over = 'return !["", "Reading..."].includes(document.querySelector("#said").textContent)'
    wait_in(driver, lambda _: opened(driver) or driver.execute_script(over))


def one(driver: Chrome, selector: str) -> Any:
    return driver.find_element(By.CSS_SELECTOR, selector)


def opened(driver: Chrome) -> bool:
    """Whether all is drawn; last of all, the list of tensors opens their values."""
    return bool(driver.find_elements(By.CSS_SELECTOR, "#tensors.opens"))


@pytest.mark.parametrize(
    "chain", ["raw", [ZStandard()], [FloatZip(), Checksum()], []], ids=["raw", "zstd", "floatzip", "none"]
)
def test_it_shows_what_a_page_of_inspect_shows(viewer: Chrome, tmp_path: Path, chain: Any):
    save(tmp_path / "step-7", chain)
    choose(viewer, tmp_path / "step-7")
    assert opened(viewer), one(viewer, "#said").text
    summary = streamxf.inspect(tmp_path / "step-7")
    wanted = json.loads(json.dumps(page_data(summary)))
    found = json.loads(one(viewer, "#data").get_attribute("textContent"))
    assert found == wanted
    assert one(viewer, "h1").text == "step-7"
    stored = summary.total.stored_bytes + summary.total.object_bytes
    assert one(viewer, ".figures").text.splitlines()[1] == f"{stored / 2**10:,.1f} KiB"
    assert "nothing here is authenticated" in one(viewer, ".facts").text.lower()


def test_a_folder_that_is_dropped_with_two_checkpoints_in_it(viewer: Chrome, tmp_path: Path):
    for step in ("step-1", "step-2"):
        save(tmp_path / "run" / step)
    dropped = {"items": [], "files": [str(tmp_path / "run")], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        viewer.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, "x": 300, "y": 200, "data": dropped})
    wait_in(viewer, lambda _: len(viewer.find_elements(By.CSS_SELECTOR, "#found-here button")) == 2)
    one(viewer, "#found-here button:nth-child(2)").click()
    wait_in(viewer, opened)
    assert one(viewer, "h1").text == "step-2"


@pytest.mark.parametrize("chain", ["raw", [FloatZip()]], ids=["raw", "floatzip"])
def test_the_values_of_a_tensor(viewer: Chrome, tmp_path: Path, chain: Any):
    state = save(tmp_path / "step-7", chain)
    choose(viewer, tmp_path / "step-7")
    for name, begin in {"embed": (290, 195), "ids": (0,), "__proto__": (0, 0), "model.layers.3.norm": (0,)}.items():
        search = one(viewer, "#search")
        search.clear()
        search.send_keys(name)
        one(viewer, "#tensors tbody tr").click()
        wait_in(viewer, lambda _, name=name: one(viewer, "#values h2").text == name)
        for start, value in zip(viewer.find_elements(By.CSS_SELECTOR, "#values input"), begin, strict=True):
            viewer.execute_script(
                "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))", start, value
            )
        box = state[name][tuple(slice(at, at + size) for at, size in zip(begin, (24, 12)[-len(begin) :], strict=True))]
        wanted = [float(f"{number:.6g}") for number in box.ravel()]
        wait_in(viewer, lambda _, wanted=wanted: numbers(viewer) == pytest.approx(wanted, rel=1e-5))


def numbers(driver: Chrome) -> list[float]:
    script = "return [...document.querySelectorAll('#values tbody td')].map((cell) => Number(cell.textContent))"
    found: list[float] = driver.execute_script(script)
    return found


def test_objects_that_are_values(viewer: Chrome, tmp_path: Path):
    save(tmp_path / "step-7", [ZStandard(), Encrypt(KEY)])
    choose(viewer, tmp_path / "step-7", KEY.reveal().hex())
    shown = [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in rows(viewer, "objects")]
    config = f'{{"step": 100, "lr": (0.9, -0.0), "text": "{HOSTILE}", "none": [null, true, h\'ff\', {2**63}, {{}}]}}'
    assert shown == [["config", config], ["pickled", "not in this viewer: objects that are pickles"]]


def rows(driver: Chrome, card: str) -> list[Any]:
    return driver.find_elements(By.CSS_SELECTOR, f"#{card} tbody tr")


def test_hostile_names_are_only_ever_text(viewer: Chrome, tmp_path: Path):
    save(tmp_path / HOSTILE.replace("/", "_"))
    choose(viewer, tmp_path / HOSTILE.replace("/", "_"))
    names = [row.text for row in viewer.find_elements(By.CSS_SELECTOR, "#tensors tbody th")]
    assert {f"a.{HOSTILE}", "__proto__", "constructor.x"} <= set(names)
    assert viewer.find_elements(By.CSS_SELECTOR, "img") == []
    assert viewer.execute_script("return ({}).items === undefined && Object.keys(Object.prototype).length === 0")


def test_an_encrypted_checkpoint(viewer: Chrome, tmp_path: Path):
    state = save(tmp_path / "step-7", [FloatZip(), Encrypt(KEY)])
    choose(viewer, tmp_path / "step-7", KEY.reveal().hex())
    assert one(viewer, "#keys").get_attribute("value") == ""
    assert opened(viewer), one(viewer, "#said").text
    assert "authenticated" not in one(viewer, ".facts").text
    one(viewer, "#search").send_keys("ids")
    one(viewer, "#tensors tbody th").send_keys(Keys.ENTER)
    wait_in(viewer, lambda _: numbers(viewer) == list(state["ids"]))


@pytest.mark.parametrize(
    ("keys", "said"),
    [(bytes(range(9, 41)).hex(), "no matching key"), ("what is this", "its form")],
    ids=["another", "no key"],
)
def test_a_key_that_does_not_open(viewer: Chrome, tmp_path: Path, keys: str, said: str):
    save(tmp_path / "step-7", [ZStandard(), Encrypt(KEY)])
    choose(viewer, tmp_path / "step-7", keys)
    assert not opened(viewer)
    assert said in one(viewer, "#said").text
    assert one(viewer, "#keys").get_attribute("value") == ""


def test_public_key_recipients_need_a_signature(viewer: Chrome, tmp_path: Path):
    private, signer = PrivateKey.generate("hpke-x25519"), SigningKey.generate()
    save(tmp_path / "step-7", [ZStandard(), Encrypt(private.public, signer=signer)])
    write_key(tmp_path / "private", private)
    write_key(tmp_path / "signer", signer.verify_key)
    secret = (tmp_path / "private").read_text()
    choose(viewer, tmp_path / "step-7", secret)
    assert "no signature by one who is trusted" in one(viewer, "#said").text
    choose(viewer, tmp_path / "step-7", secret + (tmp_path / "signer").read_text())
    assert opened(viewer), one(viewer, "#said").text


def test_who_signed_what_is_not_secret(viewer: Chrome, tmp_path: Path):
    signer = SigningKey.generate()
    state = save(tmp_path / "step-7", signer=signer)
    for name, key in (("mine", signer), ("another", SigningKey.generate())):
        write_key(tmp_path / name, key.verify_key)
    choose(viewer, tmp_path / "step-7", (tmp_path / "another").read_text())
    assert "no signature by one who is trusted" in one(viewer, "#said").text
    choose(viewer, tmp_path / "step-7", (tmp_path / "mine").read_text())
    assert opened(viewer), one(viewer, "#said").text
    assert "not checked" not in one(viewer, ".facts").text
    one(viewer, "#search").send_keys("ids")
    one(viewer, "#tensors tbody th").send_keys(Keys.ENTER)
    wait_in(viewer, lambda _: numbers(viewer) == list(state["ids"]))
    viewer.find_element("link text", "Open another").click()
    wait_in(viewer, lambda _: one(viewer, "#open").is_displayed())
    choose(viewer, tmp_path / "step-7", "")
    assert opened(viewer), one(viewer, "#said").text


def test_what_it_leaves_to_others(viewer: Chrome, tmp_path: Path):
    choose(viewer, tmp_path)
    assert "no .metadata" in one(viewer, "#said").text
    (tmp_path / "stock").mkdir()
    (tmp_path / "stock" / ".metadata").write_bytes(b"\x80\x04N.")
    choose(viewer, tmp_path / "stock")
    assert one(viewer, "#said").text.startswith("not in this viewer: checkpoints of torch's own writers")
