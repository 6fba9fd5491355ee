"""``make docs-screenshots``: pictures for the documentation, of pages of real checkpoints."""

import base64
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch
from selenium.webdriver import Chrome
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from benchmarks.data.training import Training, training_state
from streamxf.cli.__main__ import main as command
from tests.tools.inspect.browser import browser, show

IMAGES = Path(__file__).parents[1] / "images"
WIDTH, SCALE = 1280, 1.5
# Small enough to be trained in a minute or two, and deep enough to have layers.
TRAINING = Training(width=192, layers=12, heads=6, context=64, batch=4, steps=150)
CHECKPOINT, PAGE = "step-150", "page.html"


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, chdir(scratch):  # so that the page's path is a short one
        save_training(Path(CHECKPOINT))
        if command(["inspect", CHECKPOINT, "--values", "--top", "0", "--html", PAGE]):
            raise RuntimeError("the page could not be made")
        with browser() as driver:
            for name, theme in (("inspect-html", "light"), ("inspect-html-dark", "dark")):
                show(driver, Path(PAGE).absolute(), width=WIDTH, theme=theme)
                picture(driver, "#layers", IMAGES / f"{name}.png")


def save_training(path: Path) -> None:
    """Parameters in bf16, moments in fp32, as training frameworks save them."""
    torch.set_num_threads(1)  # the matrices are so small that threads would mostly wait for one another
    found = training_state(path.with_name("cache"), TRAINING)
    state: dict[str, Any] = {
        "model": {name: tensor.bfloat16() for name, tensor in found["parameters"].items()},
        "optimizer": {moment: found[moment] for moment in ("exp_avg", "exp_avg_sq")},
        "step": TRAINING.steps,
    }
    chain = [streamxf.FloatZip(), streamxf.Checksum()]
    save(state, storage_writer=streamxf.FileSystemWriter(path, _extensions=chain))


def picture(driver: Chrome, last: str, file: Path) -> None:
    """The page from its top to the end of the element that a selector finds."""
    height = driver.execute_script(f"return document.querySelector('{last}').getBoundingClientRect().bottom + scrollY")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": round(height) + 9, "scale": SCALE}
    file.parent.mkdir(exist_ok=True)
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    file.write_bytes(base64.b64decode(taken["data"]))
    print(f"{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
