"""Notes: their content, keys and trailer."""

from __future__ import annotations

import json
from typing import Any

import zstandard

from tests.forge import MetadataParts, frame_of
from tests.sealing import (
    HYBRID,
    KEY,
    OTHER_SIGNER,
    SIGNER,
    Vouching,
    aes_wrap,
    entry,
    hpke_wrap,
    index_digest,
    mac_of,
    note_digest,
    secret,
    wrapped,
    zstd,
)
from tests.vectors.recipes.runs import RUN
from tests.vectors.recipes.vector import Made, under

RECORD = {
    "save_id": secret("save id").hex()[:32],
    "run": RUN,
    "files": [
        {"path": "model.safetensors", "size": 2**40, "sha256": secret("file").hex()},
        {"path": "a/b", "size": 0, "checksum": "crc64nvme:AAAAAAAAAAA="},
        {"path": "größe", "size": 7},
    ],
}
_TEXT = json.dumps(RECORD)
_SHARED = Vouching()
_SIGNED = Vouching(signer=SIGNER)
_PRIVATE = Vouching(wrapped([entry(*hpke_wrap(HYBRID))]), (), SIGNER)
_BOTH = Vouching(wrapped([entry(*hpke_wrap(HYBRID)), aes_wrap()]), (KEY,), SIGNER)


def _parts(content: Any = RECORD, vouching: Vouching | None = None) -> MetadataParts:
    """Of JSON, or of a frame as it is stored."""
    packed = content if isinstance(content, bytes) else frame_of(json.dumps(content).encode())
    keys = f"{vouching.wrapped}\n{vouching.vouchers(note_digest(packed))}" if vouching is not None else ""
    return MetadataParts(b"", packed, keys.encode())


def vectors() -> Made:
    """All of them."""
    return {**_right(), **_content(), **_around(), **_keys()}


def _nested(depth: int) -> Any:
    made: Any = []
    for _ in range(depth - 1):
        made = [made]
    return made


def _right() -> Made:
    odd = {"": [None, True, False, 0, 2**53 - 1], "é": {"a\nb": "\u007f"}}
    return {
        "record": _parts().pack(),
        "keyed": _parts(vouching=_SHARED).pack(),
        "unread": _parts(vouching=_SHARED).pack(),
        "signed": _parts(vouching=_SIGNED).pack(),
        "hybrid": _parts(vouching=_PRIVATE).pack(),
        "both": _parts(vouching=_BOTH).pack(),
        "odd": _parts(odd).pack(),
        "null": _parts(None).pack(),
        "string": _parts("note").pack(),
        "nested": _parts(_nested(128)).pack(),
        "spaced": _parts(frame_of(json.dumps(RECORD, indent=1).encode())).pack(),
    }


def _content() -> Made:
    texts = {
        "not-json": "version: 1",
        "empty": "",
        "cut": _TEXT[:-1],
        "utf-8": '{"a":"\xc3\xa9"}',
        "fraction": '{"a":1.5}',
        "exponent": '{"a":1e5}',
        "negative": '{"a":-1}',
        "minus-zero": "[-0]",
        "nan": "[NaN]",
        "minus-zero-alone": "-0",
        "2-53": f"[{2**53}]",
        "long": "[1" + "0" * 5000 + "]",
        "surrogate": '["\\ud800"]',
        "surrogate-name": '{"\\udfff":1}',
        "twice": '{"a":1,"a":1}',
        "deep": json.dumps(_nested(129)),
        "very-deep": "[" * 5000 + "]" * 5000,
    }
    text = _TEXT.encode()
    frames = {
        "not-a-frame": text,
        "two-frames": zstd(text[:100]) + zstd(text[100:]),
        "trailing-byte": zstd(text) + b"\0",
        "no-content-size": zstandard.ZstdCompressor(write_content_size=False).compress(text),
        "bomb": zstd(text[:-1] + b" " * 200_000 + text[-1:]),
    }
    return {
        **under("N2", {name: _parts(frame_of(text.encode("latin-1"))).pack() for name, text in texts.items()}),
        **under("zstd", {name: _parts(packed).pack() for name, packed in frames.items()}),
        "N1-json": _parts(_spaced(2**23 + 1)).pack(),
        "N1-commas": _parts(_commas(2**19 + 1)).pack(),
    }


def _spaced(size: int) -> bytes:
    """Blanks, behind as many digits as it takes to be no bomb."""
    digits = "".join(secret(f"digits {number}").hex() for number in range(4096))
    return frame_of(json.dumps(digits).encode().ljust(size))


def _commas(count: int) -> bytes:
    """With as many digits as it takes to be no bomb."""
    digits = "".join(secret(f"digits {number}").hex() for number in range(256))
    return frame_of(json.dumps(digits + "," * count).encode())


def _around() -> Made:
    made = _parts()
    whole = made.pack()
    cases = {
        "magic": whole[:-1] + b"\xd2",
        "continued": whole + b"\0",
        "nothing": b"",
        "magic-alone": whole[-8:],
        "cut": whole[1:],
        "version-2": made.change(format_bytes=bytes([2, 1, 0, 0])).pack(),
        "suite-2": made.change(format_bytes=bytes([1, 2, 0, 0])).pack(),
        "critical-1": made.change(format_bytes=bytes([1, 1, 1, 0])).pack(),
        "reserved": made.change(reserved=bytes(3) + b"\1").pack(),
        "size": made.change(index_size=2**20).pack(),
        "content-bit": bytes([whole[0] ^ 1]) + whole[1:],
    }
    return {
        **under("trailer", cases),
        "N1-pickle": made.change(pickled=b"P").pack(),
        "trailer-byte-before": b"P" + whole,
        "N1-pickle-digest": made.change(head_digest=bytes(32)).pack(),
    }


def _flagged(made: MetadataParts) -> bytes:
    return made.change(format_bytes=bytes([1, 1, 0, 1])).pack()


def _keys() -> Made:
    made, frame = _parts(vouching=_SHARED), frame_of(_TEXT.encode())
    other = _parts({}, vouching=_SHARED)
    line = wrapped([aes_wrap()])

    def keys(*lines: str) -> bytes:
        return made.change(keys="\n".join(lines).encode("latin-1")).pack()

    of_index = Vouching().vouchers(index_digest(frame))
    unsigned = Vouching(_PRIVATE.text, (), None)
    stranger = Vouching(_PRIVATE.text, (), OTHER_SIGNER)
    return {
        "M12-three-lines": made.change(keys=made.keys + b"\n" + line.encode()).pack(),
        "M12-one-line": keys(line),
        "M12-long": keys("a" * 32769, of_index),
        "M12-ascii": keys(line + "\xe9", of_index),
        "K7-signers-alone": _parts(vouching=_SIGNED).pack(),
        "K7-no-keys": _parts().pack(),
        "K3-other-key": made.pack(),
        "K4-index": keys(line, of_index),
        "K4-informative": _flagged(made),
        "K4-other-note": made.change(keys=other.keys).pack(),
        "K5-no-voucher": keys(line, mac_of(note_digest(frame), line)),
        "K6-unsigned": _parts(vouching=unsigned).pack(),
        "K6-stranger": _parts(vouching=stranger).pack(),
    }
