"""Made the files in v1 with the first streamxf. They are never made again: later versions must read these very bytes.

Run with a folder's name to see how such files come about: ``python tests/vectors/make.py FOLDER``. Salts and data keys
are drawn at random, so the files differ from run to run; what they hold does not.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import streamxf
from streamxf import LZ4, Checksum, Encrypt, ZStandard

KEY = bytes(range(32))
SECOND_KEY = bytes(range(32, 64))
BLOCK = 1 << 16


def payload(size: int) -> bytes:
    """Bytes that anybody can make again: SHA-256 in counter mode and text, by turns of 1 KiB."""
    out = bytearray()
    number = 0
    while len(out) < size:
        noise = b"".join(hashlib.sha256(b"%d %d" % (number, part)).digest() for part in range(32))
        out += noise if number % 2 else (b"line %d of a text. " % number * 64)[:1024]
        number += 1
    return bytes(out[:size])


VECTORS = [
    ("empty", [], 0, None),
    ("none", [], 100, None),
    ("zstd", [ZStandard(3)], 5000, None),
    ("zstd-fast-two-blocks", [ZStandard(-7)], BLOCK + 1, None),
    ("lz4", [LZ4()], 5000, None),
    ("lz4-high", [LZ4(12)], 5000, None),
    ("checksum-crc32c", [Checksum()], 1000, None),
    ("checksum-sha256", [Checksum("sha256")], 1000, None),
    ("encrypt", [Encrypt(KEY)], 1000, KEY),
    ("encrypt-empty", [Encrypt(KEY)], 0, KEY),
    ("full", [ZStandard(3), Checksum(), Encrypt(KEY)], 5000, KEY),
    ("full-three-blocks", [ZStandard(3), Checksum(), Encrypt(SECOND_KEY)], 2 * BLOCK + 77, SECOND_KEY),
    ("full-block-edge", [LZ4(9), Encrypt(KEY), Checksum("sha256")], 2 * BLOCK, KEY),
    ("six-codecs", [Checksum(), LZ4(), ZStandard(1), Checksum("sha256"), Encrypt(KEY), Checksum()], 3000, KEY),
]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for name, codecs, size, key in VECTORS:
        data = payload(size)
        path = folder / f"{name}.bin"
        with streamxf.open(path, "wb", chain=codecs, block_size=BLOCK) as file:
            file.write(data)
        listed.append(
            {
                "file": path.name,
                "key": key.hex() if key else None,
                "chain": [codec.descriptor().bound for codec in codecs],
                "size": size,
                "sha256": hashlib.sha256(data).hexdigest(),
                "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
        )
    (folder / "vectors.json").write_text(json.dumps(listed, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
