"""Whole checkpoints: their index, keys and trailer, and containers that are not those of the index."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import zstandard

from tests.forge import (
    BOUND,
    HASHED,
    KEYED,
    PUBLISHED,
    Band,
    Columns,
    MetadataParts,
    Parts,
    encode,
    identity_of,
    split_metadata,
)
from tests.sealing import (
    DEK,
    ENCRYPT,
    HYBRID,
    KEY,
    OTHER_DEK,
    OTHER_SIGNER,
    SIGNER,
    X25519,
    Vouching,
    aes_wrap,
    entry,
    hpke_wrap,
    index_digest,
    mac_of,
    voucher,
    wrapped,
    zstd,
)
from tests.vectors.recipes.data import payload
from tests.vectors.recipes.runs import RUN
from tests.vectors.recipes.vector import Made, under
from tests.vectors.recipes.world import (
    BASE,
    CHECKSUM,
    FILE,
    FRAMED,
    FULL,
    OBJECT,
    PICKLE,
    PIECES,
    SAVE_ID,
    SIGNED,
    STEP,
    TENSOR,
    TWO,
    WEIGHT,
    WRITERS,
    ZSTD,
    Change,
    Piece,
    World,
    crcs_of,
    put,
    tensor,
    world,
)


def vectors() -> Made:
    """All of them."""
    return {
        **_right(),
        **_odd(),
        **_trailers(),
        **_json(),
        **_members(),
        **_paths(),
        **_tiles(),
        **_parts(),
        **_kinds(),
        **_raw(),
        **_containers(),
        **_empties(),
        **_keys(),
        **_policy(),
        **_descriptors(),
    }


def drop(*path: str | int) -> Change:
    """A change that takes a member out."""

    def change(index: dict[str, Any]) -> None:
        inner: Any = index
        for step in path[:-1]:
            inner = inner[step]
        del inner[path[-1]]

    return change


# -- what loads ------------------------------------------------------------------------------------------------------


def _right() -> Made:
    framed = tuple(piece if piece.kind == OBJECT else replace(piece, kind=FRAMED) for piece in PIECES)
    x25519, hybrid = (wrapped([entry(*hpke_wrap(kind))]) for kind in (X25519, HYBRID))
    both = wrapped([entry(*hpke_wrap(HYBRID)), aes_wrap()])

    def public(text: str, signer: Any = SIGNER, keys: tuple[bytes, ...] = ()) -> World:
        return world(chain=(ENCRYPT,), vouching=Vouching(text, keys, signer))

    cases = {
        "zstd": BASE,
        "bare": world(framed, ()),
        "framed": world(framed),
        "level": world(chain=(f"{ZSTD}#level=19",)),
        "encrypted": FULL,
        "two-writers": TWO,
        "signed": SIGNED,
        "signed-no-trust": SIGNED,
        "x25519": public(x25519),
        "hybrid": public(hybrid),
        "hybrid-unsigned-allowed": public(hybrid, None),
        "vouching-first": public(both, None, (KEY,)),
        "gaps": world(gap=b"nothing"),
    }
    transformed = tuple(replace(piece, data=zstandard.ZstdCompressor().compress(piece.data)) for piece in framed)
    return {
        **{name: made.files() for name, made in cases.items()},
        "transform": world(transformed, transforms=["stream.zstd/1"]).files(),
        "transform-bare": world(transformed, (), transforms=["stream.zstd/1"]).files(),
        "rank-3": _of_rank(BASE, 3),
        "rank-part": _of_rank(world([WEIGHT[0]]), 0),
    }


def _of_rank(made: World, rank: int, change: Change | None = None) -> dict[str, bytes]:
    def changed(index: dict[str, Any]) -> None:
        index["rank"] = rank
        if change is not None:
            change(index)

    return made.files(changed, rank=rank)


_DTYPES = {
    1: "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "uint16 int16 float16 bfloat16",
    4: "uint32 int32 float32 complex32",
    8: "uint64 int64 float64 complex64",
    16: "complex128",
}


def _odd() -> Made:
    """What is unusual, and right."""
    every = [
        tensor(dtype, dtype, (2, 3), bytes(6 * size)) for size, names in _DTYPES.items() for dtype in names.split()
    ]
    shapes = [
        tensor("scalar", "int64", (), bytes(8)),
        tensor("empty", "float32", (0, 3), b""),
        tensor("huge-and-empty", "float32", (0, 2**40), b""),
        tensor("one", "bool", (1,) * 8, b"\1"),
    ]
    grid = [
        Piece("grid", TENSOR, payload(100)[row * 20 + column :][:6], "uint8", (row * 2, column * 3), (2, 3), (4, 6))
        for row in range(2)
        for column in range(2)
    ]
    hole = [*WEIGHT, Piece("weight", TENSOR, b"", "float32", (1, 0), (0, 3), (4, 3)), STEP]
    ragged = [
        Piece("ragged", TENSOR, bytes(4), "uint8", (0, 0), (2, 2), (4, 3)),
        Piece("ragged", TENSOR, bytes(2), "uint8", (0, 2), (2, 1), (4, 3)),
        Piece("ragged", TENSOR, bytes(6), "uint8", (2, 0), (2, 3), (4, 3)),
    ]
    names = [replace(STEP, name=name) for name in ("größe", "a/b", "../a", " ", "a\nb", "x" * 4000)]
    extra = {"version": "1", "any": [{"thing": [None, True, 0, 2**53 - 1, "é"]}], "": {}}
    nested = put("extra", "deep", value=_nested(127))
    no_chunks = put("items", "none", value={"dtype": "float32", "shape": [0], "chunks": []})
    cases = {
        "dtypes": world(every).files(),
        "shapes": world(shapes).files(),
        "grid": world(grid).files(),
        "ragged": world(ragged).files(),
        "chunk-without-elements": world(hole).files(),
        "names": world(names).files(),
        "no-items": world([]).files(),
        "extra": BASE.files(put("extra", value=extra)),
        "extra-nested": BASE.files(nested),
        "properties": BASE.files(
            put("items", "weight", "properties", value={"requires_grad": True, "layout": "sparse_coo", "new": False})
        ),
        "paths-of-items": BASE.files(put("items", "step", "path", value=["a", 0, "", 2**20 - 1])),
        "modules": BASE.files(put("modules", value=["acme.delta=acme-codec==1.0"])),
        "spaced": BASE.files(text=lambda text: json.dumps(json.loads(text), indent=1)),
        "escaped": BASE.files(text=lambda text: text.replace('"weight"', '"\\u0077eight"')),
        "members-in-another-order": BASE.files(text=lambda text: json.dumps(dict(reversed(json.loads(text).items())))),
        "frame-with-checksum": BASE.files(packed=_checked),
        "no-pickle": BASE.files(around=lambda made: made.change(pickled=b"")),
        "eight-bytes": BASE.files(around=lambda made: made.change(pickled=bytes.fromhex("D353584D0D0A1A0A"))),
        "another-pickle": BASE.files(around=lambda made: made.change(head_digest=bytes(32))),
        "dtypes-twice": BASE.files(root=put("dtypes", value=["float32", "int8", "float32"])),
        "unused-file": BASE.files(_unused),
        "ignored": BASE.files(_ignored, root=_ignored_deeper),
        "ignored-nested": BASE.files(put("_", value=_nested(128))),
        "informative": BASE.files(around=_informative),
    }
    folder = "run 7/é/" + FILE
    return {
        **cases,
        "ignored-keyed": _ignoring(),
        "renamed": FULL.files(_rename_item("step", "größe")),
        "informative-keyed": _vouched_flags(255, 255),
        "no-chunks": BASE.files(no_chunks),
        "in-folders": _renamed(folder),
        "colon-later": _renamed("a/b:c"),
    }


def _ignored(index: dict[str, Any]) -> None:
    """A member more in the root, in its run, and in what is said of items."""
    run = copy.deepcopy(RUN) | {"_host": "a\n"}
    run["metrics"]["_loss"] = "3fe0000000000000"
    index |= {"_later": [None, {"a": 2**53 - 1}], "_": "é", "run": run}
    for each in index["items"].values():
        each["_later"] = {"any": [True]}


def _ignored_deeper(root: dict[str, Any]) -> None:
    """The same in bands and parts."""
    band = root["items"][0]
    for each in (band, *band["parts"], *root["files"]):
        each["_later"] = {"any": [True]}


def _ignoring() -> dict[str, bytes]:
    def around(made: MetadataParts) -> MetadataParts:
        return made.change(keys=made.keys + b"&_later=a:b&_later=")

    return FULL.files(_ignored, around=around)


def _informative(made: MetadataParts) -> MetadataParts:
    return made.change(format_bytes=bytes([1, 1, 0, 255]))


def _vouched_flags(vouched: int, stored: int) -> dict[str, bytes]:
    """Informative flags; the vouchers may be for others."""

    def around(made: MetadataParts) -> MetadataParts:
        digest = index_digest(made.packed_index, bytes([1, 1, 0, vouched]))
        by = Vouching()
        return made.change(keys=f"{by.wrapped}\n{by.vouchers(digest)}".encode(), format_bytes=bytes([1, 1, 0, stored]))

    return FULL.files(around=around)


def _nested(depth: int) -> Any:
    made: Any = {}
    for _ in range(depth - 1):
        made = [made]
    return made


def _checked(packed: bytes) -> bytes:
    text = zstandard.ZstdDecompressor().decompress(packed)
    return zstandard.ZstdCompressor(write_content_size=True, write_checksum=True).compress(text)


def _unused(index: dict[str, Any]) -> None:
    index["files"].append({"path": "another", "size": 7, "writer": WRITERS[0].hex()})


def _renamed(path: str) -> dict[str, bytes]:
    return BASE.files(put("files", 0, "path", value=path), data={path: BASE.data[FILE]})


# -- trailer, frame and JSON -----------------------------------------------------------------------------------------


def _trailers() -> Made:
    right = BASE.files()
    metadata = right[".metadata"]
    size = len(split_metadata(metadata).packed_index)

    def of(data: bytes) -> dict[str, bytes]:
        return right | {".metadata": data}

    def around(**changes: Any) -> dict[str, bytes]:
        return BASE.files(around=lambda made: made.change(**changes))

    cases = {
        "magic": of(metadata[:-1] + b"\xd2"),
        "cut": of(metadata[:-1]),
        "continued": of(metadata + b"\0"),
        "nothing": of(b""),
        "magic-alone": of(metadata[-8:]),
        "root-len-0": around(index=b""),
        "root-len-beyond-file": around(index_size=2**20),
        "keys-len-above-limit": around(keys=b"k" * 65538),
        "keys-len-beyond-file": around(keys_size=2**16),
        "head-len": around(head_size=len(PICKLE) - 1),
        "head-len-2-63": around(head_size=2**63, parts_size=2**63),
        "parts-len": around(parts_size=1 + len(metadata)),
        "version-0": around(format_bytes=bytes([0, 1, 0, 0])),
        "version-2": around(format_bytes=bytes([2, 1, 0, 0])),
        "suite-0": around(format_bytes=bytes([1, 0, 0, 0])),
        "suite-2": around(format_bytes=bytes([1, 2, 0, 0])),
        "critical-1": around(format_bytes=bytes([1, 1, 1, 0])),
        "critical-128": around(format_bytes=bytes([1, 1, 128, 0])),
        "reserved": around(reserved=bytes(3) + b"\1"),
        "digest": of(metadata[:-9] + bytes([metadata[-9] ^ 1]) + metadata[-8:]),
        "root-bit": of(_flip(metadata, -104 - size // 2)),
        "head-digest-bit": of(_flip(metadata, -60)),
    }
    text = json.dumps(encode(BASE.index)[0]).encode()
    frames = {
        "not-a-frame": text,
        "two-frames": zstd(text[:100]) + zstd(text[100:]),
        "trailing-byte": zstd(text) + b"\0",
        "cut": zstd(text)[:-1],
        "no-content-size": zstandard.ZstdCompressor(write_content_size=False).compress(text),
        "skippable": b"\x50\x2a\x4d\x18\1\0\0\0x" + zstd(text),
        "bomb": zstd(text[:-1] + b" " * 200_000 + text[-1:]),
    }
    return {
        **under("trailer", cases),
        **under("zstd-index", {name: BASE.files(packed=lambda _, made=made: made) for name, made in frames.items()}),
    }


def _flip(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _json() -> Made:
    """The JSON as a whole, and M1."""
    size = '"items":2'

    def replaced(old: str, new: str) -> Callable[[str], str]:
        def change(text: str) -> str:
            assert text.count(old) >= 1
            return text.replace(old, new, 1)

        return change

    broken = {
        "not-json": lambda text: "version: 1",
        "empty": lambda text: "",
        "cut": lambda text: text[:-1],
        "twice": lambda text: text + text,
        "trailing-comma": lambda text: text[:-1] + ",}",
        "comment": lambda text: text + "//",
        "single-quotes": lambda text: text.replace('"', "'"),
        "byte-order-mark": lambda text: "\xef\xbb\xbf" + text,
        "utf-8": replaced('"step"', '"\xc3\xa9"'),
        "control-character": replaced('"step"', '"a\nb"'),
        "leading-zero": replaced(size, size.replace(":", ":0")),
        "plus": replaced(size, size.replace(":", ":+")),
        "deep": lambda text: "[" * 5000 + "]" * 5000,
    }
    numbers = {
        "fraction": replaced(size, size + ".0"),
        "exponent": replaced(size, size + "e0"),
        "minus-zero": replaced('"from":0', '"from":-0'),
        "negative": replaced('"from":0', '"from":-1'),
        "2-53": replaced(size, f'"items":{2**53}'),
        "2-53-extra": replaced('"extra":{}', f'"extra":{{"a":{2**53}}}'),
        "2-53-ignored": replaced('"extra":{}', f'"extra":{{}},"_a":{2**53}'),
        "null-and-2-53": replaced('"extra":{}', f'"extra":{{}},"_a":[null,{2**53}]'),
        "negative-ignored": replaced('"extra":{}', '"extra":{},"_a":{"b":-1}'),
        "surrogate-ignored": replaced('"extra":{}', '"extra":{},"_a":"\\ud800"'),
        "surrogate-ignored-name": replaced('"extra":{}', '"extra":{},"_\\ud800":0'),
        "ignored-twice": replaced('"extra":{}', '"extra":{},"_a":0,"_a":0'),
        "long": replaced('"extra":{}', '"extra":{"a":1' + "0" * 5000 + "}"),
        "nan": replaced('"extra":{}', '"extra":{"a":NaN}'),
        "infinity": replaced('"extra":{}', '"extra":{"a":Infinity}'),
        "negative-extra": replaced('"extra":{}', '"extra":{"a":-1}'),
        "fraction-extra": replaced('"extra":{}', '"extra":{"a":1.5}'),
        "surrogate-extra": replaced('"extra":{}', '"extra":{"a":"\\ud800"}'),
        "surrogate-key": replaced('"extra":{}', '"extra":{"\\udfff":1}'),
        "surrogate-item": replaced('"step"', '"\\ud800"'),
        "surrogate-package": replaced('"torch":"2"', '"torch":"\\ud800"'),
        "name-twice": lambda text: text[:-1] + ',"modules":[]}',
        "extra-twice": replaced('"extra":{}', '"extra":{"a":1,"a":1}'),
        "size-twice": replaced(size, f"{size},{size}"),
        "array": lambda text: f"[{text}]",
        "null": lambda text: "null",
    }
    return {
        **under("index", {name: BASE.files(text=change) for name, change in broken.items()}),
        **under("M1", {name: BASE.files(text=change) for name, change in numbers.items()}),
        "M1-extra-too-deep": BASE.files(put("extra", "deep", value=_nested(128))),
        "M1-ignored-too-deep": BASE.files(put("_", value=_nested(129))),
    }


def _members() -> Made:
    """Members that are missing, unknown, of another type, or have a value that there is not."""
    step, weight, band, part = ("items", "step"), ("items", "weight"), ("items", 0), ("items", 0, "parts", 0)
    types = {
        "save-id-missing": drop("save_id"),
        "extra-missing": drop("extra"),
        "packages-missing": drop("packages"),
        "dtypes-missing": drop("dtypes"),
        "unknown": put("comment", value="none"),
        "capitals": put("Rank", value=None),
        "rank-text": put("rank", value="0"),
        "rank-true": put("rank", value=True),
        "transforms-null": put("transforms", value=None),
        "chain-text": put("chain", value=ZSTD),
        "chain-numbers": put("chain", value=[1]),
        "dtypes-numbers": put("dtypes", value=[1]),
        "dtypes-object": put("dtypes", value={}),
        "files-object": put("files", value={}),
        "files-of-numbers": put("files", value=[1]),
        "items-object": put("items", value={}),
        "band-array": put(*band, value=[]),
        "band-unknown-member": put(*band, "kind", value=1),
        "band-without-last": drop(*band, "last"),
        "band-items-text": put(*band, "items", value="2"),
        "band-first-number": put(*band, "first", value=1),
        "parts-object": put(*band, "parts", value={}),
        "part-array": put(*part, value=[]),
        "part-unknown-member": put(*part, "kind", value=1),
        "part-without-raw": drop(*part, "raw"),
        "part-bytes-true": put(*part, "bytes", value=True),
        "part-from-text": put(*part, "from", value="0"),
        "modules-object": put("modules", value={}),
        "module-null": put("modules", value=[None]),
        "packages-array": put("packages", value=["streamxf", "torch"]),
        "package-number": put("packages", "torch", value=2),
        "package-underscore": put("packages", "_torch", value=2),
        "extra-array": put("extra", value=[]),
    }
    values = {
        "save-id-number": put("save_id", value=7),
        "save-id-short": put("save_id", value=SAVE_ID[:-1]),
        "save-id-capitals": put("save_id", value=SAVE_ID.upper()),
        "save-id-newline": put("save_id", value=SAVE_ID + "\n"),
        "part-sha256-capitals": put(*part, "sha256", value="A" * 64),
        "part-sha256-short": put(*part, "sha256", value="0" * 63),
        "part-digest": put(*part, "sha256", value="0" * 64),
        "part-raw": lambda root: root["items"][0]["parts"][0].update(raw=root["items"][0]["parts"][0]["raw"] + 8),
        "part-bytes": lambda root: root["items"][0]["parts"][0].update(bytes=2**21),
        "part-of-files-digest": put("files", 0, "sha256", value="0" * 64),
        "part-missing": drop("files", 0),
        "part-from": put(*part, "from", value=1),
        "dtypes-257": put("dtypes", value=[f"a{number}" for number in range(257)]),
    }
    of_items = {
        "item-unknown-member": put(*step, "later", value=1),
        "item-underscore-behind": put(*step, "kind_", value=1),
        "object-with-properties": put(*step, "properties", value={}),
        "properties-array": put(*weight, "properties", value=[]),
        "properties-number": put(*weight, "properties", value={"a": 1}),
        "properties-underscore": put(*weight, "properties", value={"_a": 1}),
        "path-text": put(*step, "path", value="a"),
    }
    paths = {
        "path-empty": put(*step, "path", value=[]),
        "path-of-257": put(*step, "path", value=["a"] * 257),
        "path-of-2-20": put(*step, "path", value=["a", 2**20]),
        "path-of-null": put(*step, "path", value=["a", None]),
        "path-of-true": put(*step, "path", value=["a", True]),
    }
    return {
        **under("M1", {name: BASE.files(root=change) for name, change in types.items()}),
        **under("index", {name: BASE.files(root=change) for name, change in values.items()}),
        **under("M1", {name: BASE.files(change) for name, change in of_items.items()}),
        **under("index", {name: BASE.files(change) for name, change in paths.items()}),
    }


def _rename_item(old: str, new: str) -> Change:
    return lambda index: index["items"].update({new: index["items"].pop(old)})


def _paths() -> Made:
    cases = {
        "up": "../" + FILE,
        "up-inside": "a/../../" + FILE,
        "absolute": "/etc/passwd",
        "empty": "",
        "dot": "./" + FILE,
        "double-slash": "a//" + FILE,
        "slash-at-end": "a/",
        "backslash": "a\\" + FILE,
        "drive": "C:" + FILE,
        "url": "s3://bucket/" + FILE,
        "nul": "a\0b",
        "control": "a\x9fb",
        "percent": "%2e%2e/" + FILE,
        "question-mark": FILE + "?a",
        "number-sign": FILE + "#a",
        "of-4097": "a" * 4097,
    }
    places = {
        "M2-at": lambda index: _shift(index, 1),
        "M2-bytes": put("items", "step", "bytes", value=10**6),
        "M2-wraps": put("items", "step", "at", value=2**53 - 1),
        "M16-number-missing": drop("items", "step", "number"),
        "M16-number-missing-chunk": drop("items", "weight", "chunks", 1, "number"),
        "M16-path-twice": lambda index: index["files"].append(index["files"][0]),
        "M3-size": put("files", 0, "size", value=len(BASE.data[FILE]) - 0 + 1),
        "M16-crc-with-a-chain": put("items", "step", "crc32c", value="00000000"),
    }
    bare = world([STEP], ())
    second = {"identity": identity_of("weight", TENSOR, "float32", (2, 0), (2, 3), (4, 3), writer=WRITERS[0])}
    step = {"identity": identity_of("step", writer=WRITERS[0], number=1)}
    one = world([WEIGHT[0], replace(WEIGHT[1], header=second), STEP])
    other = world([*WEIGHT, replace(STEP, header=step)])
    again = world([WEIGHT[0], replace(WEIGHT[1], writer=1, header=second), STEP], (ENCRYPT,), deks=(DEK, DEK)).files(
        _one_writer
    )
    return {
        "M16-number-bare": bare.files(put("items", "step", "number", value=0)),
        "M2-number-twice": other.files(put("items", "step", "number", value=1)),
        "M2-number-twice-in-one": one.files(put("items", "weight", "chunks", 1, "number", value=0)),
        "M2-number-twice-by-id": again,
        **under("M4", {name: BASE.files(put("files", 0, "path", value=path)) for name, path in cases.items()}),
        **{name: BASE.files(change) for name, change in places.items()},
        "M3-continued": BASE.files(data={FILE: BASE.data[FILE] + b"\0"}),
        "M3-cut": BASE.files(data={FILE: BASE.data[FILE][:-1]}),
        "M16-crc-missing": bare.files(drop("items", "step", "crc32c")),
    }


def _one_writer(index: dict[str, Any]) -> None:
    one, two = index["files"]
    two |= {"writer": one["writer"], "key": one["key"]}
    index["items"]["weight"]["chunks"][1]["number"] = 0


def _shift(index: dict[str, Any], by: int) -> None:
    index["items"]["step"]["at"] += by


# -- chunks ----------------------------------------------------------------------------------------------------------


def _tiles() -> Made:
    def chunks(*boxes: tuple[tuple[int, ...], tuple[int, ...]], shape: tuple[int, ...], dtype: str = "uint8") -> Change:
        """A tensor of these chunks, which no container can have, instead of the object; nothing is stored there."""
        stored = {"file": 0, "at": 0, "bytes": 0}
        places = [
            stored | {"number": 9 + number, "offset": list(at), "shape": list(size)}
            for number, (at, size) in enumerate(boxes)
        ]
        return put("items", "step", value={"dtype": dtype, "shape": list(shape), "chunks": places})

    def tiles(
        *boxes: tuple[tuple[int, ...], tuple[int, ...]], shape: tuple[int, ...], change: Change | None = None
    ) -> dict[str, bytes]:
        """The same, with a container for each, so that nothing but how they lie is wrong."""
        made = [Piece("t", TENSOR, payload(prod(size)), "uint8", at, size, shape) for at, size in boxes]
        return world([*WEIGHT, *made]).files(change)

    stored = {
        "gap": tiles(((0,), (2,)), ((3,), (1,)), shape=(4,)),
        "overlap": tiles(((0,), (3,)), ((2,), (2,)), shape=(4,)),
        "overlap-and-gap": tiles(((0,), (2,)), ((1,), (2,)), shape=(4,)),
        "pinwheel": tiles(*_PINWHEEL, shape=(3, 3)),
        "same-offset": tiles(((0,), (4,)), ((0,), (0,)), shape=(4,)),
        "twice": tiles(((0,), (4,)), ((0,), (4,)), shape=(4,)),
        "falling": tiles(
            ((0,), (2,)), ((2,), (2,)), shape=(4,), change=lambda index: index["items"]["t"]["chunks"].reverse()
        ),
    }
    cases = {
        "no-chunks": chunks(shape=(4,)),
        "beyond": chunks(((0,), (5,)), shape=(4,)),
        "beyond-empty": chunks(((0,), (4,)), ((5,), (0,)), shape=(4,)),
        "product-2-53": chunks(((0, 0), (2**32, 2**21)), shape=(2**32, 2**21)),
        "product-beside-0": chunks(shape=(0, 2**32, 2**21)),
    }
    long = chunks(((0, 0), (4, 1)), shape=(4,))
    overlapping = [WEIGHT[0], replace(WEIGHT[1], offset=(1, 0))]
    rank = {"overlap": _of_rank(world(overlapping), 0), "beyond": _of_rank(BASE, 0, chunks(((3,), (2,)), shape=(4,)))}
    return {
        **under("M5", stored),
        **under("M5", {name: BASE.files(change) for name, change in cases.items()}),
        "M16-chunk-of-two-dimensions": BASE.files(long),
        "M16-dimensions-65": BASE.files(chunks(((0,) * 65, (1,) * 65), shape=(1,) * 65)),
        **under("M5-rank", rank),
        "M10-rank-0": BASE.files(put("rank", value=0)),
        "M10-rank-of-all": BASE.files(rank=3),
        "M10-rank-another": BASE.files(put("rank", value=2), rank=3),
    }


def _parts() -> Made:
    """M16: columns, and how they are cut into bands and parts."""
    both = ["step", "weight"]

    def columns(change: Callable[[Columns], object], starts: tuple[int, ...] = (0,)) -> dict[str, bytes]:
        return BASE.files(bands=[Band(both, starts, change=change)])

    def files(change: Callable[[Columns], object]) -> dict[str, bytes]:
        return TWO.files(files=change)

    def puts(new: Columns) -> Callable[[Columns], object]:
        return lambda found: found.update(new)

    def value(number: int, at: int, new: int) -> Callable[[Columns], object]:
        return lambda found: found[number].__setitem__(at, new)

    def raw(at: int, new: bytes) -> dict[str, bytes]:
        return BASE.files(raw=lambda data: data[:at] + new + data[at + len(new) :])

    def later(change: Callable[[Columns], object]) -> Callable[[Columns], object]:
        """In the second part alone."""
        return lambda found: change(found) if 3 not in found else None

    def renamed(*names: bytes) -> Callable[[Columns], object]:
        ends = [len(b"".join(names[: number + 1])) for number in range(len(names))]
        return puts({1: ends, 2: b"".join(names)})

    def inserted(found: Columns) -> None:
        later = {number: found.pop(number) for number in [*found] if number > 9}
        found |= {9: [0, 0], **later}

    many: Columns = {8: [2, 1], 6: [0, 0], 7: [], 5: [0, 0], 10: [], 11: []}
    apart = [Band(["step"]), Band(["weight"], (0, 1))]
    right = {
        "two-bands": BASE.files(bands=apart),
        "two-parts": columns(lambda found: None, (0, 1)),
        "wide-integers": BASE.files(width=8),
        "column-128": columns(puts({128: b"a", 255: b"bc" * 9})),
        "empty-part": columns(lambda found: None, (0, 1, 2)),
    }
    cases = {
        "magic": raw(0, b"s"),
        "version": raw(3, b"\2"),
        "columns-more": raw(4, b"\x10"),
        "columns-many": raw(4, b"\xff" * 4),
        "items-more": raw(8, b"\3"),
        "chunks-more": raw(12, b"\4"),
        "directory-zero": raw(18, b"\1"),
        "width-3": raw(17, b"\3"),
        "width-0": raw(17, b"\0"),
        "count": raw(20, b"\xff" * 4),
        "id-twice": raw(24, b"\1"),
        "behind": BASE.files(raw=lambda data: data + bytes(8)),
        "padding": BASE.files(raw=lambda data: data[:-1] + b"\1"),
        "cut": BASE.files(raw=lambda data: data[:15]),
        "column-9": columns(inserted),
        "column-18": columns(puts({18: bytes(12)})),
        "column-37": files(puts({37: [0, 0]})),
        "column-of-files": columns(puts({34: [1, 2]})),
        "more-missing": columns(lambda found: found.pop(4)),
        "ends-fall": columns(puts({1: [10, 4]})),
        "ends-beyond": columns(value(1, 1, 99)),
        "name-empty": BASE.files(bands=[Band(both, first="", last="stepweight", change=renamed(b"", b"stepweight"))]),
        "name-utf-8": columns(renamed(b"ste\xff", b"weight")),
        "name-utf-8-cut": columns(renamed(b"step\xc3", b"\xa9weight")),
        "name-surrogate": columns(renamed(b"step", b"w\xed\xa0\x80")),
        "name-4097": BASE.files(bands=[Band(both, last="w" * 4097, change=renamed(b"step", b"w" * 4097))]),
        "names-fall": BASE.files(bands=[Band(both, first="weight", last="step", change=renamed(b"weight", b"step"))]),
        "name-twice": BASE.files(bands=[Band(both, last="step", change=renamed(b"step", b"step"))]),
        "first": BASE.files(bands=[Band(both, first="a")]),
        "last": BASE.files(bands=[Band(both, last="z")]),
        "items": BASE.files(bands=[Band(both, items=3)]),
        "bands-fall": BASE.files(bands=[Band(["weight"]), Band(["step"])]),
        "bands-overlap": BASE.files(bands=[Band(["step"]), Band(both)]),
        "dtype": columns(value(5, 1, 2)),
        "object-dimensions": columns(puts({5: [0, 0]})),
        "object-chunks": columns(puts(many)),
        "dimensions": columns(value(6, 1, 3)),
        "count-2-53": columns(value(8, 1, 2**53)),
        "at-2-53": columns(value(14, 0, 2**53)),
        "at-2-63": columns(value(14, 0, 2**63)),
        "file": columns(value(13, 0, 1)),
        "kind-of-object": columns(value(12, 0, 2)),
        "part-2-names": columns(later(renamed(b"step", b"weighu")), (0, 1)),
        "part-2-shape": columns(later(value(7, 0, 5)), (0, 1)),
        "part-2-count": columns(later(value(8, 1, 3)), (0, 1)),
        "part-2-more": columns(later(lambda found: found.update(_with_more(found))), (0, 1)),
        "path-ends": files(puts({32: [24, 12]})),
        "paths-fall": files(puts({33: b"__1_0.distcp__0_0.distcp"})),
        "path-utf-8": files(puts({33: b"__0_0.distcp__1_0.distc\xff"})),
        "writer-short": files(puts({35: bytes(31)})),
        "files-from": BASE.files(root=put("files", 0, "from", value=1)),
        "no-files": BASE.files(lambda index: index.update(files=[])),
    }
    noise = b"".join(hashlib.sha256(bytes([number % 256, number // 256])).digest() for number in range(520))
    bombs = {"part-bomb": bytes(2**20), "part-above-limit": noise + bytes(2**22)}
    tight = BASE.files(parts=lambda data: data + b"\0")
    return {
        **right,
        **under("M16", cases),
        **under("index", {name: columns(puts({128: data})) for name, data in bombs.items()}),
        "large-part": columns(puts({128: noise + bytes(2**21)})),
        "index-parts-continued": tight,
    }


def _with_more(found: Columns) -> Columns:
    rest = dict(found)
    found.clear()
    return {1: rest.pop(1), 2: rest.pop(2), 3: [0, 0], 4: b"", **rest}


_PINWHEEL = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((1, 0), (2, 1)), ((2, 1), (1, 2))]


def _kinds() -> Made:
    first = ("items", "weight", "chunks", 0)
    framed = tuple(piece if piece.kind == OBJECT else replace(piece, kind=FRAMED) for piece in PIECES)
    transformed = world(framed, transforms=["stream.zstd/1"])
    raw, bare = world(PIECES, ()), world(framed, ())  # where no container says the same again
    dtypes = {
        "C5-dtype-quantized": (raw, "quint8"),
        "C5-dtype-without-elements": (raw, "float8"),
        "C6-dtype-empty": (bare, ""),
        "C6-dtype-capitals": (bare, "Float32"),
        "C6-dtype-of-33": (bare, "f" * 33),
    }
    return {
        **{f"M16-kind-{kind}": bare.files(put(*first, "kind", value=kind)) for kind in (0, 1, 4)},
        "M6-transformed-tensor": transformed.files(drop(*first, "framed")),
        **{name: made.files(put("items", "weight", "dtype", value=dtype)) for name, (made, dtype) in dtypes.items()},
    }


# -- containers that are not those of the index ----------------------------------------------------------------------


def _raw() -> Made:
    """Items without containers."""
    raw = world(PIECES, ())
    first, step = ("items", "weight", "chunks", 0), ("items", "step")
    crc = raw.index["items"]["step"]["crc32c"]
    empty = [tensor("empty", "float32", (0, 3), b""), tensor("scalar", "bfloat16", (), b"\x80\x3f")]
    cases = {
        "B1-raw-short": _sized(first, 23),
        "B1-raw-long": _sized(first, 25),
        "B1-raw-dtype": lambda index: index["items"]["weight"].update(dtype="float64"),
        "B2-raw-tensor": put(*first, "crc32c", value="00000000"),
        "B2-raw-object": put(*step, "crc32c", value="00000000"),
        "B2-raw-swapped": _exchanged,
        "M16-raw-missing": drop(*first, "crc32c"),
        "M16-raw-none": put(*step, "crc32c", value=""),
        "M16-raw-two": put(*step, "crc32c", value=2 * crc),
        "M2-raw-beyond": _sized(step, len(STEP.data) + 1),
        "C5-raw-quantized": put("items", "weight", "dtype", value="qint8"),
    }
    return {
        "raw": raw.files(),
        "raw-odd": world(PIECES, (), gap=b"gap").files(),
        "raw-empty": world(empty, ()).files(),
        **{name: raw.files(change) for name, change in cases.items()},
    }


def _sized(path: tuple[str | int, ...], size: int) -> Change:
    """Another size, with the CRC of the bytes that are there."""

    def change(index: dict[str, Any]) -> None:
        place: Any = index["items"]
        for step in path[1:]:
            place = place[step]
        data = world(PIECES, ()).data[FILE][place["at"] :][:size]
        place |= {"bytes": size, "crc32c": crcs_of(data)}

    return change


def _exchanged(index: dict[str, Any]) -> None:
    one, other = index["items"]["weight"]["chunks"]
    one["at"], other["at"] = other["at"], one["at"]


def _containers() -> Made:
    """M8: what somebody can do who can write to the storage, and mends all CRCs."""

    def stored(**changes: Any) -> dict[str, bytes]:
        """The object's container is another one."""
        return world([*WEIGHT, replace(STEP, header=changes)]).files()

    bound = identity_of("step", writer=WRITERS[0], number=2)
    first = WEIGHT[0]
    moved = identity_of("weight", TENSOR, "float32", (2, 0), (2, 3), (4, 3), writer=WRITERS[0])
    cases = {
        "unpublished": stored(flags=BOUND),
        "unbound": stored(flags=0, identity=b""),
        "number": stored(identity=identity_of("step", writer=WRITERS[0], number=3)),
        "writer": stored(identity=identity_of("step", writer=WRITERS[1], number=2)),
        "kind": stored(identity=identity_of("step", FRAMED, "float32", writer=WRITERS[0], number=2)),
        "chain": stored(chain=b"streamxf.lz4/1", identity=bound),
        "chain-longer": stored(chain=f"{ZSTD}\n{ZSTD}".encode(), identity=bound),
        "chain-empty": stored(chain=b"", identity=bound),
        "offset": world([replace(first, header={"identity": moved}), WEIGHT[1], STEP]).files(),
        "dtype": _identity(dtype="int32"),
        "shard": _identity(shard=(3, 2), tensor=(4, 3)),
        "tensor": _identity(tensor=(5, 3)),
        "framed": _identity(kind=FRAMED),
        "swapped": BASE.files(_swap),
    }
    keyed = FULL.files(put("chain", value=[ZSTD, CHECKSUM, f"{ENCRYPT}#{wrapped()}"]))
    return {
        **under("M8", cases),
        "M8-wrapped-key": keyed,
        "C1-fragment-in-header": _fragment(),
        "C3-data-key": _other_key(),
        "header-not-a-container": _no_container(),
        "footer-longer": BASE.files(_longer, data={FILE: BASE.data[FILE] + b"\0"}),
        "footer-shorter": BASE.files(_shorter),
        **_signed(),
    }


def _fragment() -> dict[str, bytes]:
    made = world([*WEIGHT, replace(STEP, header={"chain": f"{ZSTD}#level=3".encode()})])
    return made.files(put("chain", value=[f"{ZSTD}#level=3"]))


def _identity(**changes: Any) -> dict[str, bytes]:
    piece = replace(WEIGHT[0], **changes)
    identity = identity_of(
        piece.name, piece.kind, piece.dtype, piece.offset, piece.shard, piece.tensor, writer=WRITERS[0], number=0
    )
    return world([replace(WEIGHT[0], header={"identity": identity}), WEIGHT[1], STEP]).files()


def _swap(index: dict[str, Any]) -> None:
    one, two = index["items"]["weight"]["chunks"]
    for member in ("at", "bytes"):
        one[member], two[member] = two[member], one[member]


def _longer(index: dict[str, Any]) -> None:
    index["files"][0]["size"] += 1
    index["items"]["step"]["bytes"] += 1


def _shorter(index: dict[str, Any]) -> None:
    index["items"]["step"]["bytes"] -= 1


def _other_key() -> dict[str, bytes]:
    return world([*WEIGHT, STEP], chain=(ENCRYPT,)).files(data=world(PIECES, chain=(ENCRYPT,), deks=(OTHER_DEK,)).data)


def _no_container() -> dict[str, bytes]:
    made = world([STEP], ())
    step = put("items", "step", "number", value=0)
    return made.files(lambda index: (index.update(chain=[ZSTD]), index["items"]["step"].pop("crc32c"), step(index)))


def _signed() -> Made:
    """M7, and what a reader of a signed checkpoint can do who has the data key."""
    digest = ("items", "step", "sha256")
    unsigned = Vouching()
    forged = world(
        [*WEIGHT, replace(STEP, data=STEP.data[::-1])], chain=(ZSTD, ENCRYPT), vouching=Vouching(signer=SIGNER)
    )
    hashed = replace(SIGNED, vouching=unsigned)
    bare = replace(world(chain=(ZSTD, ENCRYPT)), vouching=Vouching(signer=SIGNER))
    one = world(
        [*WEIGHT, replace(STEP, header={"flags": KEYED | BOUND | PUBLISHED})],
        chain=(ENCRYPT,),
        vouching=Vouching(signer=SIGNER),
    )
    unexpected = world([*WEIGHT, replace(STEP, header={"flags": BOUND | PUBLISHED | HASHED})])
    assert len(forged.data[FILE]) == len(SIGNED.data[FILE])
    cases = {
        "digest": SIGNED.files(put(*digest, value="0" * 64)),
        "forged-by-a-reader": SIGNED.files(data=forged.data),
        "container": one.files(),
        "unexpected": unexpected.files(),
    }
    columns = {"T-missing": SIGNED.files(drop(*digest)), "no-T": bare.files(), "T-unsigned": hashed.files()}
    return {**under("M7", cases), **under("M16", columns)}


def _empties() -> Made:
    """A container of an empty tensor, which no element makes a reader decode."""

    def of(stored: Callable[[Parts], Parts]) -> dict[str, bytes]:
        return world([tensor("empty", "float32", (0, 3), b"", stored=stored)]).files()

    def flip(made: Parts) -> Parts:
        return made.change(crcs=(b"\xff\xff\xff\xff",))

    def frame(made: Parts) -> Parts:
        return made.change(blocks=((True, b"not a frame"),))

    def not_last(made: Parts) -> Parts:
        return made.change(blocks=((False, made.blocks[0][1]),))

    def full(made: Parts) -> Parts:
        return made.change(blocks=((True, zstd(b"data")),))

    hole = Piece("weight", TENSOR, b"", "float32", (1, 0), (0, 3), (4, 3), stored=flip)
    return {
        "block-empty-crc": of(flip),
        "zstd-empty-frame": of(frame),
        "C7-empty-not-last": of(not_last),
        "C9-empty-has-bytes": of(full),
        "block-empty-chunk-crc": world([*WEIGHT, hole]).files(),
    }


# -- keys, vouchers and policy ---------------------------------------------------------------------------------------


def _keys() -> Made:
    def lines(change: Callable[[list[str]], object], made: World = TWO) -> dict[str, bytes]:
        def around(parts: MetadataParts) -> MetadataParts:
            found = parts.keys.decode("ascii").split("\n")
            change(found)
            return parts.change(keys="\n".join(found).encode("latin-1"))

        return made.files(around=around)

    other = bytes.fromhex(TWO.index["files"][1]["key"])
    key, wrong = ("files", 1, "key"), (other[:-1] + bytes([other[-1] ^ 1])).hex()
    same = TWO.index["files"][0]["writer"]
    moved = identity_of("weight", TENSOR, "float32", (2, 0), (2, 3), (4, 3), writer=WRITERS[0], number=1)
    pieces = [WEIGHT[0], replace(WEIGHT[1], writer=1, header={"identity": moved}), STEP]
    one_writer, one_key = (world(pieces, (ENCRYPT,), deks=deks) for deks in ((DEK, OTHER_DEK), (DEK, DEK)))
    cases = {
        "M12-line-1-alone": lines(lambda found: found.__delitem__(slice(1, None))),
        "M12-line-3": lines(lambda found: found.append(found[0])),
        "M12-not-ascii": lines(lambda found: found.append("\x80")),
        "M12-newline-at-end": lines(lambda found: found.append("")),
        "M12-line-1-long": lines(lambda found: found.__setitem__(0, found[0] + "&w=" + "x" * 32768)),
        "M16-key-missing": TWO.files(drop(*key)),
        "M16-no-keys": FULL.files(drop("files", 0, "key")),
        "M9-altered": TWO.files(put(*key, value=wrong)),
        "M9-two-keys": one_writer.files(put("files", 1, "writer", value=same)),
        "M9-zeros-and-wrapped": one_key.files(put("files", 1, "writer", value=same)),
        "C3-other-key-zero": TWO.files(put(*key, value="00" * 40)),
    }
    with_keys = replace(BASE, vouching=Vouching())
    zeros = put("files", 0, "key", value="00" * 40)
    return {
        **cases,
        "M16-keys-without-encryption": BASE.files(zeros),
        "M12-unexpected": with_keys.files(),
        "M12-missing": FULL.files(around=lambda made: made.change(keys=b"")),
        "K3-checkpoint-none": FULL.files(),
        "K3-checkpoint-another": FULL.files(),
    }


def _policy() -> Made:
    def vouched(change: Callable[[bytes], str], made: World = FULL) -> dict[str, bytes]:
        """Other vouchers for the digest D."""

        def around(parts: MetadataParts) -> MetadataParts:
            first, _, *more = parts.keys.decode("ascii").split("\n")
            return parts.change(keys="\n".join([first, change(index_digest(parts.packed_index)), *more]).encode())

        return made.files(around=around)

    def swapped(made: World) -> dict[str, bytes]:
        """The vouchers stay, the index is another."""
        old = split_metadata(made.files()[".metadata"])
        return made.files(put("save_id", value="0" * 32), around=lambda parts: parts.change(keys=old.keys))

    x25519, hybrid = (wrapped([entry(*hpke_wrap(kind))]) for kind in (X25519, HYBRID))

    def public(text: str, signer: Any) -> dict[str, bytes]:
        return world(chain=(ENCRYPT,), vouching=Vouching(text, (), signer)).files()

    other = hashlib.sha256(b"other contents").digest()
    mac = FULL.vouching.wrapped if FULL.vouching is not None else ""
    return {
        "K4-checkpoint-swapped": swapped(FULL),
        "K4-checkpoint-informative": _vouched_flags(0, 1),
        "K4-checkpoint-mac": vouched(lambda digest: f"{mac_of(other, mac)}&{voucher(digest)}"),
        "K5-checkpoint-none": vouched(lambda digest: mac_of(digest, mac)),
        "K5-checkpoint-wrong": vouched(lambda digest: f"{mac_of(digest, mac)}&{voucher(other)}"),
        "K6-checkpoint-unsigned": public(x25519, None),
        "K6-checkpoint-stranger": public(hybrid, OTHER_SIGNER),
        "K6-checkpoint-no-trust": public(hybrid, SIGNER),
        "K6-checkpoint-aeskw-unsigned": FULL.files(),
        "K7-checkpoint-signers-alone": SIGNED.files(),
        "K7-checkpoint-not-encrypted": BASE.files(),
    }


def _descriptors() -> Made:
    cases = {
        "descriptor-chain-capital": ["streamxf.Zstd/1"],
        "descriptor-chain-marked": ["!streamxf.zstd/1"],
        "D2-chain-fragment": [f"{ZSTD}#speed=3"],
        "descriptor-chain-fragment-twice": [f"{ZSTD}#level=3&level=3"],
        "descriptor-chain-fragment-twice-of-others": ["acme.delta/1#a=1&b=2&a=3"],
        "D3-chain-leading-zero": [f"{ZSTD}#level=03"],
        "D3-chain-minus-zero": [f"{ZSTD}#level=-0"],
        "D3-chain-plus": [f"{ZSTD}#level=~3"],
        "zstd-chain-level-23": [f"{ZSTD}#level=23"],
        "zstd-chain-level-minus-8": [f"{ZSTD}#level=-8"],
        "lz4-chain-level-13": ["streamxf.lz4/1#level=13"],
        "D1-chain-length": ["acme.delta/1?a=" + "b" * 1010],
        "D4-chain-checkpoint": ["acme.delta/1"],
        "D4-chain-checkpoint-version": ["streamxf.zstd/2"],
    }

    def of(chain: list[str]) -> dict[str, bytes]:
        texts = "\n".join(text.partition("#")[0] for text in chain).encode()
        pieces = [replace(STEP, header={"chain": texts})]
        return world(pieces).files(put("chain", value=chain))

    transforms = world([STEP], transforms=["stream.zstd/1"])
    framed = [replace(STEP, data=zstandard.ZstdCompressor().compress(STEP.data))]
    return {
        **{name: of(chain) for name, chain in cases.items()},
        "C1-nine-in-the-index": of([CHECKSUM] * 9),
        "D5-reserved-in-the-index": transforms.files(put("transforms", value=["streamxf.zstd/1"])),
        "D5-unknown": world(framed, transforms=["acme.scramble/1"]).files(),
    }
