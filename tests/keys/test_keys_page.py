"""What docs/keys.md prints runs as it stands, in its order, in one folder.

Its two scripts run in test_write_only_nodes.py, as processes of their own.
"""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from page import ARN, PAGE, ROOT, Block, blocks

SCRIPTS = {"train.py", "evaluate.py"}


def test_it_runs_as_printed(tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("the page makes a key with openssl")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__page__"}
    ran = []
    for block in blocks():
        if block.language == "python" and block.title is None:
            exec(compile("\n" * block.line + block.code, str(PAGE), "exec"), namespace)
        elif block.language == "sh" and "openssl" in block.code:
            subprocess.run(block.code, shell=True, check=True)
            ran.append(block.code)
    assert len(ran) == 1
    assert namespace["mine"].id != namespace["private"].id
    assert (tmp_path / "checkpoint" / ".metadata").is_file()


def shown_files() -> list[Block]:
    return [block for block in blocks() if block.title is not None and block.title not in SCRIPTS]


def test_files_are_shown_as_they_are():
    shown = {block.title: block.code for block in shown_files()}
    provider = "tests/acme_codec/src/acme_codec/folder.py"
    assert shown[provider] == (ROOT / provider).read_text()
    for title, code in shown.items():
        assert code in (ROOT / title).read_text(), title


def test_every_block_is_of_a_kind_that_is_looked_at():
    assert {block.language for block in blocks()} <= {"python", "sh", "toml", "json", "yaml"}
    (policy,) = (json.loads(block.code) for block in blocks() if block.language == "json")
    (statement,) = policy["Statement"]
    assert (statement["Action"], statement["Resource"]) == ("kms:Encrypt", ARN)
