"""Requirements of the encryption that no other test names: what storage never shows, what is fresh, what is compared in
constant time, and what a rank's own metadata does not bind.
"""

import ast
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import streamxf
from streamxf import Encrypt, PrivateKey
from streamxf.errors import StreamxfError
from streamxf.keys.envelope import DataKey, Envelope
from tests.dcp.helpers import KEY, OTHER_KEY, index_of, save, sections_of
from tests.dcp.shards import save_as_ranks

PAIR = PrivateKey(bytes(range(2, 34)))
PACKAGE = Path(streamxf.__file__).parent
SECRET = b"a sentence that nobody else may read, 0123456789"


def test_plaintext_is_in_no_file_of_an_encrypted_save(tmp_path: Path) -> None:
    tensor = torch.frombuffer(bytearray(SECRET * 50), dtype=torch.uint8)
    state = {"weight": tensor, "object": {"text": SECRET.decode(), "raw": SECRET}, "list": [tensor.clone(), 3]}
    windows = [SECRET[at : at + 8] for at in range(len(SECRET) - 7)]

    def shown(path: Path) -> list[bytes]:
        return [window for file in path.iterdir() for window in windows if window in file.read_bytes()]

    save(state, tmp_path / "plain", [])
    assert set(shown(tmp_path / "plain")) == set(windows)  # the search finds what is there
    for number, chain in enumerate(([Encrypt(KEY)], [streamxf.Checksum(), Encrypt([KEY, PAIR.public])])):
        path = tmp_path / str(number)
        save(state, path, chain)
        assert shown(path) == []


def salts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """Data key and salt of each stream that is begun from now on."""
    seen: list[tuple[bytes, bytes]] = []
    derive = DataKey.stream_keys

    def noted(self: DataKey, salt: bytes, digest: bytes) -> Any:
        seen.append((self.id, bytes(salt)))
        return derive(self, salt, digest)

    monkeypatch.setattr(DataKey, "stream_keys", noted)
    return seen


def test_every_item_of_a_checkpoint_has_a_fresh_salt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = salts(monkeypatch)
    state = {**{f"w{at}": torch.zeros(4) for at in range(20)}, "o": {"x": 1}}  # equal contents, too
    save(state, tmp_path, [Encrypt(KEY)], thread_count=2)
    assert len(seen) >= 21
    assert len({dek for dek, _ in seen}) == 1
    assert len({salt for _, salt in seen}) == len(seen)
    assert {len(salt) for _, salt in seen} == {16}


def test_every_stream_under_one_data_key_has_a_fresh_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = salts(monkeypatch)
    codec = Encrypt(KEY)
    made = [streamxf.encode(b"the same", [codec]) for _ in range(20)]
    assert len(set(made)) == 20
    assert len(seen) >= 20
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("place", "secret"),
    [("chain.py", "seal"), ("keys/ring.py", "dek_id"), ("keys/envelope.py", "_mac"), ("keys/key.py", "vouch")],
)
def test_what_authenticates_is_compared_by_compare_digest(place: str, secret: str) -> None:
    calls = [
        ast.unparse(node)
        for node in ast.walk(ast.parse((PACKAGE / place).read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("compare_digest")
    ]
    assert any(secret in call for call in calls), calls


def test_nothing_that_authenticates_is_compared_by_equality() -> None:
    compared = [
        f"{file.relative_to(PACKAGE)}: {ast.unparse(node)}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Compare)
        and any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops)
        and any(_names_secret(side) for side in (node.left, *node.comparators))
    ]
    assert compared == []


def _names_secret(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.strip("_") in {"seal", "tag", "mac", "dek_id"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_parent_and_its_forked_child_draw_different_data_keys() -> None:
    codec = Encrypt(KEY)
    own = codec.data_key.id
    ids = []
    for _ in range(2):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, codec.data_key.id)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            ids.append(pipe.read())
        assert os.waitpid(child, 0)[1] == 0
    assert [len(each) for each in ids] == [32, 32]
    assert len({own, *ids}) == 3
    assert codec.data_key.id == own


def test_wrapped_keys_stand_in_the_metadata_and_in_no_data_file(tmp_path: Path) -> None:
    save({"w": torch.ones(40), "o": {"x": 1}}, tmp_path, [Encrypt([KEY, PAIR.public, OTHER_KEY])])
    lines = sections_of(tmp_path)[1].key_lines()
    assert lines is not None
    entries = Envelope.parse(lines[0]).recipients
    assert len(entries) == 3
    parts = [part for one in entries for part in (one.data, str(one).rpartition(":")[2].encode())]
    files = list(tmp_path.glob("*.distcp"))
    assert files
    for part in parts:
        assert not [file for file in files if part[:16] in file.read_bytes()]
    texts = [str(one).rpartition(":")[2].encode() for one in entries]
    assert all(text in (tmp_path / ".metadata").read_bytes() for text in texts)


def test_ranks_own_metadata_of_two_saves_can_be_mixed_and_each_rank_still_loads_a_whole_one(tmp_path: Path) -> None:
    """Each rank's own metadata counts for itself, as docs/security.md says; of other files nothing fits."""
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        save_as_ranks(2, path, lambda: [Encrypt(KEY)], items=1, use_collectives=False)
    ids = [{rank: index_of(path, f"__{rank}.metadata").save_id for rank in range(2)} for path in (first, second)]
    for file in first.iterdir():
        if file.name.startswith("__1"):
            shutil.copyfile(file, second / file.name)
    for rank, source in ((0, 1), (1, 0)):
        reader: Any = streamxf.FileSystemReader(second, keys=KEY)
        reader.read_metadata(rank=rank)
        assert reader.save_id == ids[source][rank]
    expecting: Any = streamxf.FileSystemReader(second, keys=KEY, expect_save_id=ids[1][1])
    with pytest.raises(StreamxfError, match="was expected"):
        _ = expecting.read_metadata(rank=1).state_dict_metadata
    shutil.copyfile(first / "__0.metadata", second / "__1.metadata")
    other: Any = streamxf.FileSystemReader(second, keys=KEY)
    with pytest.raises(StreamxfError, match="renamed or copied"):
        _ = other.read_metadata(rank=1).state_dict_metadata
