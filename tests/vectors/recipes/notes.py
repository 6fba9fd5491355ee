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
from tests.vectors.recipes.vector import HELD, NOTHING, OTHERS, SIGNERS, Reader, Vector, holding

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


def vectors() -> list[Vector]:
    """All of them."""
    return [*_right(), *_content(), *_around(), *_keys()]


def _holds(name: str, about: str, file: bytes, content: Any = RECORD, reader: Reader = NOTHING) -> Vector:
    return Vector(name, about, lambda: {name: file}, {"holds": content}, reader)


def _breaks(rule: str, name: str, about: str, file: bytes, reader: Reader = NOTHING) -> Vector:
    full = f"{rule}-{name}"
    return Vector(full, about, lambda: {full: file}, {"breaks": rule}, reader)


def _nested(depth: int) -> Any:
    made: Any = []
    for _ in range(depth - 1):
        made = [made]
    return made


def _right() -> list[Vector]:
    odd = {"": [None, True, False, 0, 2**53 - 1], "é": {"a\nb": "\u007f"}}
    return [
        _holds("record", "a commit record without keys", _parts().pack()),
        _holds("keyed", "the same with keys", _parts(vouching=_SHARED).pack(), reader=HELD),
        _holds("unread", "with keys, for a reader without any", _parts(vouching=_SHARED).pack()),
        _holds("signed", "signed", _parts(vouching=_SIGNED).pack(), reader=holding("aeskw")),
        _holds("hybrid", "for a private key, signed", _parts(vouching=_PRIVATE).pack(), reader=holding(HYBRID)),
        _holds("both", "for a private and a shared key", _parts(vouching=_BOTH).pack(), reader=holding(HYBRID)),
        _holds("odd", "what else JSON has", _parts(odd).pack(), odd),
        _holds("null", "null", _parts(None).pack(), None),
        _holds("string", "a string", _parts("note").pack(), "note"),
        _holds("nested", "128 arrays in each other", _parts(_nested(128)).pack(), _nested(128)),
        _holds("spaced", "with blanks and newlines", _parts(frame_of(json.dumps(RECORD, indent=1).encode())).pack()),
    ]


def _content() -> list[Vector]:
    texts = [
        ("not-json", "no JSON", "version: 1"),
        ("empty", "nothing", ""),
        ("cut", "the last brace is missing", _TEXT[:-1]),
        ("utf-8", "a letter that is not ASCII", '{"a":"\xc3\xa9"}'),
        ("fraction", "a fraction", '{"a":1.5}'),
        ("exponent", "an exponent", '{"a":1e5}'),
        ("negative", "a negative number", '{"a":-1}'),
        ("minus-zero", "-0", "[-0]"),
        ("nan", "NaN", "[NaN]"),
        ("minus-zero-alone", "nothing but -0", "-0"),
        ("2-53", "2^53", f"[{2**53}]"),
        ("long", "a number of 5,000 digits", "[1" + "0" * 5000 + "]"),
        ("surrogate", "a lone surrogate", '["\\ud800"]'),
        ("surrogate-name", "a lone surrogate in a name", '{"\\udfff":1}'),
        ("twice", "a name twice", '{"a":1,"a":1}'),
        ("deep", "129 arrays in each other", json.dumps(_nested(129))),
        ("very-deep", "5,000 arrays in each other", "[" * 5000 + "]" * 5000),
    ]
    text = _TEXT.encode()
    frames = [
        ("not-a-frame", "JSON as it is", text),
        ("two-frames", "two frames", zstd(text[:100]) + zstd(text[100:])),
        ("trailing-byte", "a byte after the frame", zstd(text) + b"\0"),
        (
            "no-content-size",
            "the frame does not declare its size",
            zstandard.ZstdCompressor(write_content_size=False).compress(text),
        ),
        ("bomb", "more than 64 times its stored size and 65536", zstd(text[:-1] + b" " * 200_000 + text[-1:])),
    ]
    return [
        *(_breaks("N2", name, about, _parts(frame_of(text.encode("latin-1"))).pack()) for name, about, text in texts),
        *(_breaks("zstd", name, about, _parts(packed).pack()) for name, about, packed in frames),
        _breaks("N1", "json", "8 MiB and a byte of JSON", _parts(_spaced(2**23 + 1)).pack()),
        _breaks("N1", "commas", "2^19 + 1 commas in a string", _parts(_commas(2**19 + 1)).pack()),
    ]


def _spaced(size: int) -> bytes:
    """Blanks, behind as many digits as it takes to be no bomb."""
    digits = "".join(secret(f"digits {number}").hex() for number in range(4096))
    return frame_of(json.dumps(digits).encode().ljust(size))


def _commas(count: int) -> bytes:
    """With as many digits as it takes to be no bomb."""
    digits = "".join(secret(f"digits {number}").hex() for number in range(256))
    return frame_of(json.dumps(digits + "," * count).encode())


def _around() -> list[Vector]:
    made = _parts()
    whole = made.pack()
    cases = [
        ("magic", "another last byte", whole[:-1] + b"\xd2"),
        ("continued", "a byte follows", whole + b"\0"),
        ("nothing", "an empty file", b""),
        ("magic-alone", "8 bytes", whole[-8:]),
        ("cut", "the first byte is missing", whole[1:]),
        ("version-2", "version 2", made.change(format_bytes=bytes([2, 1, 0, 0])).pack()),
        ("suite-2", "suite 2", made.change(format_bytes=bytes([1, 2, 0, 0])).pack()),
        ("critical-1", "a critical flag", made.change(format_bytes=bytes([1, 1, 1, 0])).pack()),
        ("reserved", "a byte after the format bytes is 1", made.change(reserved=bytes(3) + b"\1").pack()),
        ("size", "index_len is larger than the file", made.change(index_size=2**20).pack()),
        ("content-bit", "a bit of the content", bytes([whole[0] ^ 1]) + whole[1:]),
    ]
    return [
        *(_breaks("trailer", name, about, data) for name, about, data in cases),
        _breaks("N1", "pickle", "a byte before the content", made.change(pickled=b"P").pack()),
        _breaks("trailer", "byte-before", "the same, in no digest", b"P" + whole),
        _breaks("N1", "pickle-digest", "a digest of something else", made.change(head_digest=bytes(32)).pack()),
    ]


def _flagged(made: MetadataParts) -> bytes:
    return made.change(format_bytes=bytes([1, 1, 0, 1])).pack()


def _keys() -> list[Vector]:
    made, frame = _parts(vouching=_SHARED), frame_of(_TEXT.encode())
    other = _parts({}, vouching=_SHARED)
    line = wrapped([aes_wrap()])

    def keys(*lines: str) -> bytes:
        return made.change(keys="\n".join(lines).encode("latin-1")).pack()

    of_index = Vouching().vouchers(index_digest(frame))
    unsigned = Vouching(_PRIVATE.text, (), None)
    stranger = Vouching(_PRIVATE.text, (), OTHER_SIGNER)
    return [
        _breaks("M12", "three-lines", "a third line", made.change(keys=made.keys + b"\n" + line.encode()).pack()),
        _breaks("M12", "one-line", "a wrapped data key alone", keys(line)),
        _breaks("M12", "long", "a line of 32,769 bytes", keys("a" * 32769, of_index)),
        _breaks("M12", "ascii", "a letter that is not ASCII", keys(line + "\xe9", of_index)),
        _breaks("K7", "signers-alone", "signers to trust, and no keys", _parts(vouching=_SIGNED).pack(), SIGNERS),
        _breaks("K7", "no-keys", "a reader with a key, and a note without", _parts().pack(), HELD),
        _breaks("K3", "other-key", "a reader with another key", made.pack(), OTHERS),
        _breaks("K4", "index", "vouchers for an index", keys(line, of_index), HELD),
        _breaks("K4", "informative", "a flag that came after the vouchers", _flagged(made), HELD),
        _breaks("K4", "other-note", "vouchers for another note", made.change(keys=other.keys).pack(), HELD),
        _breaks("K5", "no-voucher", "a MAC alone", keys(line, mac_of(note_digest(frame), line)), HELD),
        _breaks("K6", "unsigned", "not signed", _parts(vouching=unsigned).pack(), holding(HYBRID)),
        _breaks("K6", "stranger", "signed by a stranger", _parts(vouching=stranger).pack(), holding(HYBRID)),
    ]
