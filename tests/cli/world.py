"""A folder with everything that a command may be pointed at: whole checkpoints of all formats, and what is none."""

import hashlib
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter as StockWriter
from torch.distributed.checkpoint.state_dict_saver import save

import streamxf
from streamxf.keys import Key, PrivateKey, SigningKey
from streamxf.keys.file import write_key
from tests.altered import flip

TENSORS = {
    "layers.0.weight": torch.arange(60_000, dtype=torch.float32).reshape(200, 300),
    "layers.0.bias": torch.linspace(-1, 1, 300).to(torch.bfloat16),
    "head.weight": torch.arange(5000).reshape(50, 100),
}


def build(root: Path) -> None:
    """Fill an empty folder."""
    key = Key(bytes(range(32)))
    write_key(root / "right.key", key)
    write_key(root / "wrong.key", Key(bytes(range(1, 33))))
    write_key(root / "open.key", key)
    (root / "open.key").chmod(0o644)
    write_key(root / "private.key", PrivateKey.generate())
    write_key(root / "signing.key", SigningKey.generate())
    (root / "none.key").write_text("this is no key\n")
    (root / "text.txt").write_text("not a checkpoint\n" * 100)
    (root / "empty").mkdir()
    (root / "empty.safetensors").touch()
    (root / "folder with a file").mkdir()
    shutil.copy(root / "text.txt", root / "folder with a file")
    save_file(TENSORS, root / "good.safetensors")
    cut = (root / "good.safetensors").read_bytes()
    (root / "cut.safetensors").write_bytes(cut[: len(cut) // 2])
    (root / "huge header.safetensors").write_bytes((2**62).to_bytes(8, "little") + cut[8:])
    torch.save(TENSORS, root / "good.pt")
    cut = (root / "good.pt").read_bytes()
    (root / "cut.pt").write_bytes(cut[: len(cut) // 2])
    torch.save({"code": Code()}, root / "code.pt")
    save(dict(TENSORS), storage_writer=StockWriter(root / "stock"))
    save(dict(TENSORS), storage_writer=streamxf.FileSystemWriter(root / "plain"))
    chain = [streamxf.ZStandard(), streamxf.Checksum(), streamxf.Encrypt(key)]
    save(dict(TENSORS), storage_writer=streamxf.FileSystemWriter(root / "encrypted", _extensions=chain))
    for name in ("plain", "encrypted", "stock"):
        shutil.copytree(root / name, root / f"{name} without metadata")
        (root / f"{name} without metadata" / ".metadata").unlink()
        shutil.copytree(root / name, root / f"{name} with cut metadata")
        metadata = root / f"{name} with cut metadata" / ".metadata"
        metadata.write_bytes(metadata.read_bytes()[:-100])
        shutil.copytree(root / name, root / f"{name} without data")
        for file in (root / f"{name} without data").glob("*.distcp"):
            file.unlink()
        shutil.copytree(root / name, root / f"{name} with a flipped bit")
        flip(*(root / f"{name} with a flipped bit").glob("*.distcp"), mask=4)
    shutil.copytree(root / "plain", root / "locked")
    shutil.copytree(root / "encrypted", root / "locked file")
    os.mkfifo(root / "pipe")
    (root / "dangling").symlink_to(root / "nothing")


class Code:
    """What ``weights_only`` refuses to unpickle."""


def fingerprint(root: Path) -> dict[str, str]:
    """What is in a folder: each file's digest, and the names of everything else."""
    found = {}
    for path in sorted(root.rglob("*")):
        regular = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest() if regular else "-"
    return found
