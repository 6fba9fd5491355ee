"""Whole checkpoints: their index, keys and trailer, and containers that are not those of the index."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
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
from tests.vectors.recipes.vector import HELD, NOTHING, OTHERS, SIGNERS, Reader, Vector, holding
from tests.vectors.recipes.world import (
    BASE,
    CHECKSUM,
    FILE,
    FRAMED,
    FULL,
    NOTHING_STORED,
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
    content_of,
    crcs_of,
    put,
    tensor,
    world,
)


def vectors() -> list[Vector]:
    """All of them."""
    return [
        *_right(),
        *_odd(),
        *_trailers(),
        *_json(),
        *_members(),
        *_paths(),
        *_tiles(),
        *_parts(),
        *_kinds(),
        *_raw(),
        *_containers(),
        *_empties(),
        *_keys(),
        *_policy(),
        *_descriptors(),
    ]


def _holds(
    name: str,
    about: str,
    files: Callable[[], dict[str, bytes]],
    pieces: Sequence[Piece] = PIECES,
    reader: Reader = NOTHING,
    rank: int | None = None,
) -> Vector:
    facts = {} if rank is None else {"rank": rank}
    return Vector(name, about, files, {"holds": content_of(pieces)}, reader, facts)


def _breaks(
    rule: str, name: str, about: str, files: dict[str, bytes], reader: Reader = NOTHING, rank: int | None = None
) -> Vector:
    facts = {} if rank is None else {"rank": rank}
    return Vector(f"{rule.replace(' ', '-')}-{name}", about, lambda: files, {"breaks": rule}, reader, facts)


def drop(*path: str | int) -> Change:
    """A change that takes a member out."""

    def change(index: dict[str, Any]) -> None:
        inner: Any = index
        for step in path[:-1]:
            inner = inner[step]
        del inner[path[-1]]

    return change


# -- what loads ------------------------------------------------------------------------------------------------------


def _right() -> list[Vector]:
    framed = tuple(piece if piece.kind == OBJECT else replace(piece, kind=FRAMED) for piece in PIECES)
    two = [replace(WEIGHT[0]), replace(WEIGHT[1], writer=1), STEP]
    x25519, hybrid = (wrapped([entry(*hpke_wrap(kind))]) for kind in (X25519, HYBRID))
    both = wrapped([entry(*hpke_wrap(HYBRID)), aes_wrap()])

    def public(text: str, signer: Any = SIGNER, keys: tuple[bytes, ...] = ()) -> World:
        return world(chain=(ENCRYPT,), vouching=Vouching(text, keys, signer))

    cases = [
        ("zstd", "a tensor in two chunks, and an object", BASE, PIECES, NOTHING),
        ("bare", "an empty chain: streams as they are", world(framed, ()), framed, NOTHING),
        ("framed", "framed tensors in containers", world(framed), framed, NOTHING),
        ("level", "a parameter of encoding", world(chain=(f"{ZSTD}#level=19",)), PIECES, NOTHING),
        ("encrypted", "three codecs", FULL, PIECES, HELD),
        ("two-writers", "two writers with a data key each", TWO, two, HELD),
        ("signed", "signed: containers have hashes, and the index theirs", SIGNED, PIECES, holding("aeskw")),
        ("signed-no-trust", "the same, and the reader does not ask who signed", SIGNED, PIECES, HELD),
        ("x25519", "for a private key, signed", public(x25519), PIECES, holding(X25519)),
        ("hybrid", "for a private key, signed", public(hybrid), PIECES, holding(HYBRID)),
        (
            "hybrid-unsigned-allowed",
            "not signed, and the reader accepts that",
            public(hybrid, None),
            PIECES,
            holding(HYBRID, trust=(), allow_unsigned=True),
        ),
        (
            "vouching-first",
            "for a private and a shared key, not signed",
            public(both, None, (KEY,)),
            PIECES,
            holding(HYBRID, "aeskw", trust=()),
        ),
        ("gaps", "bytes between items that belong to none", world(gap=b"nothing"), PIECES, NOTHING),
    ]
    transformed = tuple(replace(piece, data=zstandard.ZstdCompressor().compress(piece.data)) for piece in framed)
    return [
        *(_holds(name, about, made.files, pieces, reader) for name, about, made, pieces, reader in cases),
        _holds("transform", "torch's own compression", world(transformed, transforms=["stream.zstd/1"]).files, framed),
        _holds(
            "transform-bare",
            "the same without a container",
            world(transformed, (), transforms=["stream.zstd/1"]).files,
            framed,
        ),
        _holds("rank-3", "what one rank saved for itself", lambda: _of_rank(BASE, 3), PIECES, rank=3),
        _holds(
            "rank-part",
            "a rank that has one of two chunks",
            lambda: _of_rank(world([WEIGHT[0]]), 0),
            [WEIGHT[0]],
            rank=0,
        ),
    ]


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


def _odd() -> list[Vector]:
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
    cases: list[tuple[str, str, dict[str, bytes], Sequence[Piece]]] = [
        ("dtypes", "an item of each dtype", world(every).files(), every),
        ("shapes", "no dimensions, no elements, many dimensions", world(shapes).files(), shapes),
        ("grid", "chunks in two dimensions", world(grid).files(), grid),
        ("ragged", "chunks that are no grid", world(ragged).files(), ragged),
        ("chunk-without-elements", "a chunk without elements between others", world(hole).files(), hole),
        ("names", "names that are no paths, and need not be", world(names).files(), names),
        ("no-items", "nothing was saved", world([]).files(), []),
        ("extra", "what planners added", BASE.files(put("extra", value=extra)), PIECES),
        ("extra-nested", "128 objects and arrays in each other", BASE.files(nested), PIECES),
        (
            "properties",
            "what DCP records of a tensor",
            BASE.files(
                put(
                    "items", "weight", "properties", value={"requires_grad": True, "layout": "sparse_coo", "new": False}
                )
            ),
            PIECES,
        ),
        (
            "paths-of-items",
            "where items stand in the nested state dict",
            BASE.files(put("items", "step", "path", value=["a", 0, "", 2**20 - 1])),
            PIECES,
        ),
        (
            "modules",
            "packages that provide codecs",
            BASE.files(put("modules", value=["acme.delta=acme-codec==1.0"])),
            PIECES,
        ),
        (
            "spaced",
            "JSON with blanks and newlines",
            BASE.files(text=lambda text: json.dumps(json.loads(text), indent=1)),
            PIECES,
        ),
        (
            "escaped",
            "JSON with an escape that it does not need",
            BASE.files(text=lambda text: text.replace('"weight"', '"\\u0077eight"')),
            PIECES,
        ),
        (
            "members-in-another-order",
            "the order of members does not matter",
            BASE.files(text=lambda text: json.dumps(dict(reversed(json.loads(text).items())))),
            PIECES,
        ),
        ("frame-with-checksum", "a checksum of the frame's own", BASE.files(packed=_checked), PIECES),
        (
            "no-pickle",
            "nothing where the pickle belongs",
            BASE.files(around=lambda made: made.change(pickled=b"")),
            PIECES,
        ),
        (
            "eight-bytes",
            "the head of those that torch's readers are not to read",
            BASE.files(around=lambda made: made.change(pickled=bytes.fromhex("D353584D0D0A1A0A"))),
            PIECES,
        ),
        (
            "another-pickle",
            "a head with another digest",
            BASE.files(around=lambda made: made.change(head_digest=bytes(32))),
            PIECES,
        ),
        (
            "dtypes-twice",
            "a dtype that stands there twice, and one of no item",
            BASE.files(root=put("dtypes", value=["float32", "int8", "float32"])),
            PIECES,
        ),
        ("unused-file", "a file that has no items", BASE.files(_unused), PIECES),
        ("ignored", "members that readers ignore", BASE.files(_ignored, root=_ignored_deeper), PIECES),
        ("ignored-nested", "128 arrays in one of them", BASE.files(put("_", value=_nested(128))), PIECES),
        ("informative", "informative flags that no reader knows", BASE.files(around=_informative), PIECES),
    ]
    folder = "run 7/é/" + FILE
    return [
        *(_holds(name, about, lambda files=files: files, pieces) for name, about, files, pieces in cases),
        _holds("ignored-keyed", "members and vouchers that readers ignore", _ignoring, reader=HELD),
        _holds(
            "renamed",
            "an item that was renamed in the index alone",
            lambda: FULL.files(_rename_item("step", "größe")),
            RENAMED,
            HELD,
        ),
        _holds("informative-keyed", "informative flags, vouched for", lambda: _vouched_flags(255, 255), reader=HELD),
        _holds("no-chunks", "a tensor without elements and chunks", lambda: BASE.files(no_chunks), _with_none()),
        _holds("in-folders", "a file in a folder of a folder", lambda: _renamed(folder)),
        _holds("colon-later", "a colon in another part than the first", lambda: _renamed("a/b:c")),
    ]


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


RENAMED = [replace(piece, name="größe" if piece.name == "step" else piece.name) for piece in PIECES]


def _with_none() -> list[Piece]:
    return [*PIECES, Piece("none", NOTHING_STORED, b"", "float32", (), (), (0,))]


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


def _trailers() -> list[Vector]:
    right = BASE.files()
    metadata = right[".metadata"]
    size = len(split_metadata(metadata).packed_index)

    def of(data: bytes) -> dict[str, bytes]:
        return right | {".metadata": data}

    def around(**changes: Any) -> dict[str, bytes]:
        return BASE.files(around=lambda made: made.change(**changes))

    cases = [
        ("magic", "another last byte", of(metadata[:-1] + b"\xd2")),
        ("cut", "the last byte is missing", of(metadata[:-1])),
        ("continued", "a byte follows", of(metadata + b"\0")),
        ("nothing", "an empty file", of(b"")),
        ("magic-alone", "8 bytes", of(metadata[-8:])),
        ("root-len-0", "the length of the root is 0", around(index=b"")),
        ("root-len-beyond-file", "the root is larger than the file", around(index_size=2**20)),
        ("keys-len-above-limit", "the length of the keys is 65538", around(keys=b"k" * 65538)),
        ("keys-len-beyond-file", "the keys are larger than the file", around(keys_size=2**16)),
        ("head-len", "the head is a byte shorter than the file has it", around(head_size=len(PICKLE) - 1)),
        ("head-len-2-63", "lengths that add up by wrapping around", around(head_size=2**63, parts_size=2**63)),
        ("parts-len", "the parts are a byte longer", around(parts_size=1 + len(metadata))),
        ("version-0", "version 0", around(format_bytes=bytes([0, 1, 0, 0]))),
        ("version-2", "version 2", around(format_bytes=bytes([2, 1, 0, 0]))),
        ("suite-0", "suite 0", around(format_bytes=bytes([1, 0, 0, 0]))),
        ("suite-2", "suite 2", around(format_bytes=bytes([1, 2, 0, 0]))),
        ("critical-1", "a critical flag", around(format_bytes=bytes([1, 1, 1, 0]))),
        ("critical-128", "a critical flag", around(format_bytes=bytes([1, 1, 128, 0]))),
        ("reserved", "a byte after the format bytes is 1", around(reserved=bytes(3) + b"\1")),
        ("digest", "a bit of the digest", of(metadata[:-9] + bytes([metadata[-9] ^ 1]) + metadata[-8:])),
        ("root-bit", "a bit of the root", of(_flip(metadata, -104 - size // 2))),
        ("head-digest-bit", "a bit of the head's digest", of(_flip(metadata, -60))),
    ]
    text = json.dumps(encode(BASE.index)[0]).encode()
    frames = [
        ("not-a-frame", "JSON as it is", text),
        ("two-frames", "two frames", zstd(text[:100]) + zstd(text[100:])),
        ("trailing-byte", "a byte after the frame", zstd(text) + b"\0"),
        ("cut", "the frame's last byte is missing", zstd(text)[:-1]),
        (
            "no-content-size",
            "the frame does not declare its size",
            zstandard.ZstdCompressor(write_content_size=False).compress(text),
        ),
        ("skippable", "a skippable frame before it", b"\x50\x2a\x4d\x18\1\0\0\0x" + zstd(text)),
        ("bomb", "more than 64 times its stored size and 65536", zstd(text[:-1] + b" " * 200_000 + text[-1:])),
    ]
    return [
        *(_breaks("trailer", name, about, files) for name, about, files in cases),
        *(
            _breaks("zstd", f"index-{name}", about, BASE.files(packed=lambda _, made=made: made))
            for name, about, made in frames
        ),
    ]


def _flip(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _json() -> list[Vector]:
    """The JSON as a whole, and M1."""
    size = '"items":2'

    def replaced(old: str, new: str) -> Callable[[str], str]:
        def change(text: str) -> str:
            assert text.count(old) >= 1
            return text.replace(old, new, 1)

        return change

    broken = [
        ("not-json", "no JSON", lambda text: "version: 1"),
        ("empty", "nothing", lambda text: ""),
        ("cut", "the last brace is missing", lambda text: text[:-1]),
        ("twice", "two objects", lambda text: text + text),
        ("trailing-comma", "a comma before the last brace", lambda text: text[:-1] + ",}"),
        ("comment", "a comment", lambda text: text + "//"),
        ("single-quotes", "quotes that are not JSON's", lambda text: text.replace('"', "'")),
        ("byte-order-mark", "a byte order mark", lambda text: "\xef\xbb\xbf" + text),
        ("utf-8", "a letter that is not ASCII", replaced('"step"', '"\xc3\xa9"')),
        ("control-character", "a newline in a string", replaced('"step"', '"a\nb"')),
        ("leading-zero", "a number with a leading zero", replaced(size, size.replace(":", ":0"))),
        ("plus", "a number with a plus sign", replaced(size, size.replace(":", ":+"))),
        ("deep", "5,000 arrays in each other", lambda text: "[" * 5000 + "]" * 5000),
    ]
    numbers = [
        ("fraction", "a number with a fraction", replaced(size, size + ".0")),
        ("exponent", "a number with an exponent", replaced(size, size + "e0")),
        ("minus-zero", "-0", replaced('"from":0', '"from":-0')),
        ("negative", "a negative number", replaced('"from":0', '"from":-1')),
        ("2-53", "2^53", replaced(size, f'"items":{2**53}')),
        ("2-53-extra", "2^53 in extra", replaced('"extra":{}', f'"extra":{{"a":{2**53}}}')),
        ("2-53-ignored", "2^53 in a member that is ignored", replaced('"extra":{}', f'"extra":{{}},"_a":{2**53}')),
        ("null-and-2-53", "the same in an array", replaced('"extra":{}', f'"extra":{{}},"_a":[null,{2**53}]')),
        ("negative-ignored", "a negative number there", replaced('"extra":{}', '"extra":{},"_a":{"b":-1}')),
        ("surrogate-ignored", "a lone surrogate there", replaced('"extra":{}', '"extra":{},"_a":"\\ud800"')),
        ("surrogate-ignored-name", "one in its name", replaced('"extra":{}', '"extra":{},"_\\ud800":0')),
        ("ignored-twice", "such a member twice", replaced('"extra":{}', '"extra":{},"_a":0,"_a":0')),
        ("long", "a number of 5,000 digits", replaced('"extra":{}', '"extra":{"a":1' + "0" * 5000 + "}")),
        ("nan", "NaN", replaced('"extra":{}', '"extra":{"a":NaN}')),
        ("infinity", "Infinity", replaced('"extra":{}', '"extra":{"a":Infinity}')),
        ("negative-extra", "a negative number in extra", replaced('"extra":{}', '"extra":{"a":-1}')),
        ("fraction-extra", "a fraction in extra", replaced('"extra":{}', '"extra":{"a":1.5}')),
        ("surrogate-extra", "a lone surrogate in extra", replaced('"extra":{}', '"extra":{"a":"\\ud800"}')),
        ("surrogate-key", "a lone surrogate in a name", replaced('"extra":{}', '"extra":{"\\udfff":1}')),
        ("surrogate-item", "a lone surrogate in the name of a band's first item", replaced('"step"', '"\\ud800"')),
        ("surrogate-package", "a lone surrogate in a version", replaced('"torch":"2"', '"torch":"\\ud800"')),
        ("name-twice", "a member twice", lambda text: text[:-1] + ',"modules":[]}'),
        ("extra-twice", "a name twice in extra", replaced('"extra":{}', '"extra":{"a":1,"a":1}')),
        ("size-twice", "a size twice", replaced(size, f"{size},{size}")),
        ("array", "an array", lambda text: f"[{text}]"),
        ("null", "null", lambda text: "null"),
    ]
    return [
        *(_breaks("index", name, about, BASE.files(text=change)) for name, about, change in broken),
        *(_breaks("M1", name, about, BASE.files(text=change)) for name, about, change in numbers),
        _breaks(
            "M1",
            "extra-too-deep",
            "129 objects and arrays in each other",
            BASE.files(put("extra", "deep", value=_nested(128))),
        ),
        _breaks("M1", "ignored-too-deep", "129 in a member that is ignored", BASE.files(put("_", value=_nested(129)))),
    ]


def _members() -> list[Vector]:
    """Members that are missing, unknown, of another type, or have a value that there is not."""
    step, weight, band, part = ("items", "step"), ("items", "weight"), ("items", 0), ("items", 0, "parts", 0)
    types: list[tuple[str, Change]] = [
        ("save-id-missing", drop("save_id")),
        ("extra-missing", drop("extra")),
        ("packages-missing", drop("packages")),
        ("dtypes-missing", drop("dtypes")),
        ("unknown", put("comment", value="none")),
        ("capitals", put("Rank", value=None)),
        ("rank-text", put("rank", value="0")),
        ("rank-true", put("rank", value=True)),
        ("transforms-null", put("transforms", value=None)),
        ("chain-text", put("chain", value=ZSTD)),
        ("chain-numbers", put("chain", value=[1])),
        ("dtypes-numbers", put("dtypes", value=[1])),
        ("dtypes-object", put("dtypes", value={})),
        ("files-object", put("files", value={})),
        ("files-of-numbers", put("files", value=[1])),
        ("items-object", put("items", value={})),
        ("band-array", put(*band, value=[])),
        ("band-unknown-member", put(*band, "kind", value=1)),
        ("band-without-last", drop(*band, "last")),
        ("band-items-text", put(*band, "items", value="2")),
        ("band-first-number", put(*band, "first", value=1)),
        ("parts-object", put(*band, "parts", value={})),
        ("part-array", put(*part, value=[])),
        ("part-unknown-member", put(*part, "kind", value=1)),
        ("part-without-raw", drop(*part, "raw")),
        ("part-bytes-true", put(*part, "bytes", value=True)),
        ("part-from-text", put(*part, "from", value="0")),
        ("modules-object", put("modules", value={})),
        ("module-null", put("modules", value=[None])),
        ("packages-array", put("packages", value=["streamxf", "torch"])),
        ("package-number", put("packages", "torch", value=2)),
        ("package-underscore", put("packages", "_torch", value=2)),
        ("extra-array", put("extra", value=[])),
    ]
    values: list[tuple[str, Change]] = [
        ("save-id-number", put("save_id", value=7)),
        ("save-id-short", put("save_id", value=SAVE_ID[:-1])),
        ("save-id-capitals", put("save_id", value=SAVE_ID.upper())),
        ("save-id-newline", put("save_id", value=SAVE_ID + "\n")),
        ("part-sha256-capitals", put(*part, "sha256", value="A" * 64)),
        ("part-sha256-short", put(*part, "sha256", value="0" * 63)),
        ("part-digest", put(*part, "sha256", value="0" * 64)),
        ("part-raw", lambda root: root["items"][0]["parts"][0].update(raw=root["items"][0]["parts"][0]["raw"] + 8)),
        ("part-bytes", lambda root: root["items"][0]["parts"][0].update(bytes=2**21)),
        ("part-of-files-digest", put("files", 0, "sha256", value="0" * 64)),
        ("part-missing", drop("files", 0)),
        ("part-from", put(*part, "from", value=1)),
        ("dtypes-257", put("dtypes", value=[f"a{number}" for number in range(257)])),
    ]
    of_items: list[tuple[str, Change]] = [
        ("item-unknown-member", put(*step, "later", value=1)),
        ("item-underscore-behind", put(*step, "kind_", value=1)),
        ("object-with-properties", put(*step, "properties", value={})),
        ("properties-array", put(*weight, "properties", value=[])),
        ("properties-number", put(*weight, "properties", value={"a": 1})),
        ("properties-underscore", put(*weight, "properties", value={"_a": 1})),
        ("path-text", put(*step, "path", value="a")),
    ]
    paths: list[tuple[str, Change]] = [
        ("path-empty", put(*step, "path", value=[])),
        ("path-of-257", put(*step, "path", value=["a"] * 257)),
        ("path-of-2-20", put(*step, "path", value=["a", 2**20])),
        ("path-of-null", put(*step, "path", value=["a", None])),
        ("path-of-true", put(*step, "path", value=["a", True])),
    ]
    return [
        *(_breaks("M1", name, name.replace("-", " "), BASE.files(root=change)) for name, change in types),
        *(_breaks("index", name, name.replace("-", " "), BASE.files(root=change)) for name, change in values),
        *(_breaks("M1", name, name.replace("-", " "), BASE.files(change)) for name, change in of_items),
        *(_breaks("index", name, name.replace("-", " "), BASE.files(change)) for name, change in paths),
    ]


def _rename_item(old: str, new: str) -> Change:
    return lambda index: index["items"].update({new: index["items"].pop(old)})


def _paths() -> list[Vector]:
    cases = [
        ("up", "../" + FILE),
        ("up-inside", "a/../../" + FILE),
        ("absolute", "/etc/passwd"),
        ("empty", ""),
        ("dot", "./" + FILE),
        ("double-slash", "a//" + FILE),
        ("slash-at-end", "a/"),
        ("backslash", "a\\" + FILE),
        ("drive", "C:" + FILE),
        ("url", "s3://bucket/" + FILE),
        ("nul", "a\0b"),
        ("control", "a\x9fb"),
        ("percent", "%2e%2e/" + FILE),
        ("question-mark", FILE + "?a"),
        ("number-sign", FILE + "#a"),
        ("of-4097", "a" * 4097),
    ]
    places: list[tuple[str, str, str, Change]] = [
        ("M2", "at", "an item that ends a byte beyond its file", lambda index: _shift(index, 1)),
        ("M2", "bytes", "an item that is larger than its file", put("items", "step", "bytes", value=10**6)),
        (
            "M2",
            "wraps",
            "an item that ends inside only by wrapping around",
            put("items", "step", "at", value=2**53 - 1),
        ),
        ("M16", "number-missing", "an object without a number", drop("items", "step", "number")),
        ("M16", "number-missing-chunk", "a chunk without one", drop("items", "weight", "chunks", 1, "number")),
        ("M16", "path-twice", "a path that is named twice", lambda index: index["files"].append(index["files"][0])),
        (
            "M3",
            "size",
            "a file that is larger than the index says",
            put("files", 0, "size", value=len(BASE.data[FILE]) - 0 + 1),
        ),
        ("M16", "crc-with-a-chain", "a CRC of a container", put("items", "step", "crc32c", value="00000000")),
    ]
    bare = world([STEP], ())
    second = {"identity": identity_of("weight", TENSOR, "float32", (2, 0), (2, 3), (4, 3), writer=WRITERS[0])}
    step = {"identity": identity_of("step", writer=WRITERS[0], number=1)}
    one = world([WEIGHT[0], replace(WEIGHT[1], header=second), STEP])
    other = world([*WEIGHT, replace(STEP, header=step)])
    again = world([WEIGHT[0], replace(WEIGHT[1], writer=1, header=second), STEP], (ENCRYPT,), deks=(DEK, DEK)).files(
        _one_writer
    )
    return [
        _breaks(
            "M16", "number-bare", "a number, and an empty chain", bare.files(put("items", "step", "number", value=0))
        ),
        _breaks("M2", "number-twice", "the number of another", other.files(put("items", "step", "number", value=1))),
        _breaks(
            "M2",
            "number-twice-in-one",
            "two chunks of one",
            one.files(put("items", "weight", "chunks", 1, "number", value=0)),
        ),
        _breaks("M2", "number-twice-by-id", "the same, of one writer who stands there twice", again, HELD),
        *(
            _breaks("M4", name, f"the path {path[:40]!r}", BASE.files(put("files", 0, "path", value=path)))
            for name, path in cases
        ),
        *(_breaks(rule, name, about, BASE.files(change)) for rule, name, about, change in places),
        _breaks(
            "M3", "continued", "a file to which a byte was appended", BASE.files(data={FILE: BASE.data[FILE] + b"\0"})
        ),
        _breaks("M3", "cut", "a file whose last byte is missing", BASE.files(data={FILE: BASE.data[FILE][:-1]})),
        _breaks("M16", "crc-missing", "an empty chain, and no CRCs", bare.files(drop("items", "step", "crc32c"))),
    ]


def _one_writer(index: dict[str, Any]) -> None:
    one, two = index["files"]
    two |= {"writer": one["writer"], "key": one["key"]}
    index["items"]["weight"]["chunks"][1]["number"] = 0


def _shift(index: dict[str, Any], by: int) -> None:
    index["items"]["step"]["at"] += by


# -- chunks ----------------------------------------------------------------------------------------------------------


def _tiles() -> list[Vector]:
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

    stored = [
        ("gap", "an element that is in no chunk", tiles(((0,), (2,)), ((3,), (1,)), shape=(4,))),
        ("overlap", "an element that is in two chunks", tiles(((0,), (3,)), ((2,), (2,)), shape=(4,))),
        ("overlap-and-gap", "as many elements as there should be", tiles(((0,), (2,)), ((1,), (2,)), shape=(4,))),
        ("pinwheel", "a hole in the middle", tiles(*_PINWHEEL, shape=(3, 3))),
        (
            "same-offset",
            "two chunks at one offset, of which one is empty",
            tiles(((0,), (4,)), ((0,), (0,)), shape=(4,)),
        ),
        ("twice", "the same chunk twice", tiles(((0,), (4,)), ((0,), (4,)), shape=(4,))),
        (
            "falling",
            "offsets that do not rise",
            tiles(((0,), (2,)), ((2,), (2,)), shape=(4,), change=lambda index: index["items"]["t"]["chunks"].reverse()),
        ),
    ]
    cases: list[tuple[str, str, Change]] = [
        ("no-chunks", "no chunk of a tensor that has elements", chunks(shape=(4,))),
        ("beyond", "a chunk that reaches beyond the tensor", chunks(((0,), (5,)), shape=(4,))),
        ("beyond-empty", "a chunk without elements that lies outside", chunks(((0,), (4,)), ((5,), (0,)), shape=(4,))),
        ("product-2-53", "2^53 elements", chunks(((0, 0), (2**32, 2**21)), shape=(2**32, 2**21))),
        ("product-beside-0", "a 0, and 2^53 in the others", chunks(shape=(0, 2**32, 2**21))),
    ]
    long = chunks(((0, 0), (4, 1)), shape=(4,))
    overlapping = [WEIGHT[0], replace(WEIGHT[1], offset=(1, 0))]
    rank = [
        ("overlap", "a rank's chunks that overlap", _of_rank(world(overlapping), 0)),
        ("beyond", "a rank's chunk that lies outside", _of_rank(BASE, 0, chunks(((3,), (2,)), shape=(4,)))),
    ]
    return [
        *(_breaks("M5", name, about, files) for name, about, files in stored),
        *(_breaks("M5", name, about, BASE.files(change)) for name, about, change in cases),
        _breaks("M16", "chunk-of-two-dimensions", "more offsets than dimensions", BASE.files(long)),
        _breaks("M16", "dimensions-65", "65 dimensions", BASE.files(chunks(((0,) * 65, (1,) * 65), shape=(1,) * 65))),
        *(_breaks("M5", f"rank-{name}", about, files, rank=0) for name, about, files in rank),
        _breaks("M10", "rank-0", "the metadata of rank 0 in the place of all ranks'", BASE.files(put("rank", value=0))),
        _breaks("M10", "rank-of-all", "the metadata of all ranks in the place of rank 3's", BASE.files(rank=3), rank=3),
        _breaks(
            "M10", "rank-another", "the metadata of another rank", BASE.files(put("rank", value=2), rank=3), rank=3
        ),
    ]


def _parts() -> list[Vector]:
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
    right = [
        ("two-bands", "a band for each item, and a part for each chunk", BASE.files(bands=apart)),
        ("two-parts", "a band of two parts", columns(lambda found: None, (0, 1))),
        ("wide-integers", "integers of 8 bytes", BASE.files(width=8)),
        ("column-128", "columns that readers ignore", columns(puts({128: b"a", 255: b"bc" * 9}))),
        ("empty-part", "a part without chunks behind the others", columns(lambda found: None, (0, 1, 2))),
    ]
    cases = [
        ("magic", "another first byte", raw(0, b"s")),
        ("version", "another version of parts", raw(3, b"\2")),
        ("columns-more", "a column more than there are", raw(4, b"\x10")),
        ("columns-many", "2^32 - 1 columns", raw(4, b"\xff" * 4)),
        ("items-more", "an item more than there are", raw(8, b"\3")),
        ("chunks-more", "a chunk more than there are", raw(12, b"\4")),
        ("directory-zero", "a byte in the directory that is not zero", raw(18, b"\1")),
        ("width-3", "integers of three bytes", raw(17, b"\3")),
        ("width-0", "integers of no bytes", raw(17, b"\0")),
        ("count", "a column of 2^32 - 1 integers", raw(20, b"\xff" * 4)),
        ("id-twice", "two columns with one id", raw(24, b"\1")),
        ("behind", "8 bytes behind the columns", BASE.files(raw=lambda data: data + bytes(8))),
        ("padding", "a byte of padding that is not zero", BASE.files(raw=lambda data: data[:-1] + b"\1")),
        ("cut", "a part of 15 bytes", BASE.files(raw=lambda data: data[:15])),
        ("column-9", "a column that there is not", columns(inserted)),
        ("column-18", "a column that is reserved", columns(puts({18: bytes(12)}))),
        ("column-37", "the same of files", files(puts({37: [0, 0]}))),
        (
            "column-of-files",
            "a column of files among those of items",
            columns(puts({34: [1, 2]})),
        ),
        ("more-missing", "no column 4", columns(lambda found: found.pop(4))),
        ("ends-fall", "ends that fall", columns(puts({1: [10, 4]}))),
        ("ends-beyond", "ends beyond the names", columns(value(1, 1, 99))),
        (
            "name-empty",
            "an empty name",
            BASE.files(bands=[Band(both, first="", last="stepweight", change=renamed(b"", b"stepweight"))]),
        ),
        ("name-utf-8", "a name that is not UTF-8", columns(renamed(b"ste\xff", b"weight"))),
        ("name-utf-8-cut", "names that share a character", columns(renamed(b"step\xc3", b"\xa9weight"))),
        ("name-surrogate", "a lone surrogate in a name", columns(renamed(b"step", b"w\xed\xa0\x80"))),
        (
            "name-4097",
            "a name of 4097 bytes",
            BASE.files(bands=[Band(both, last="w" * 4097, change=renamed(b"step", b"w" * 4097))]),
        ),
        (
            "names-fall",
            "names that fall",
            BASE.files(bands=[Band(both, first="weight", last="step", change=renamed(b"weight", b"step"))]),
        ),
        ("name-twice", "a name twice", BASE.files(bands=[Band(both, last="step", change=renamed(b"step", b"step"))])),
        ("first", "another first name in the root", BASE.files(bands=[Band(both, first="a")])),
        ("last", "another last name in the root", BASE.files(bands=[Band(both, last="z")])),
        ("items", "another number of items in the root", BASE.files(bands=[Band(both, items=3)])),
        ("bands-fall", "bands that fall", BASE.files(bands=[Band(["weight"]), Band(["step"])])),
        ("bands-overlap", "an item in two bands", BASE.files(bands=[Band(["step"]), Band(both)])),
        ("dtype", "a dtype that there is not", columns(value(5, 1, 2))),
        ("object-dimensions", "an object with dimensions", columns(puts({5: [0, 0]}))),
        (
            "object-chunks",
            "an object of two chunks",
            columns(puts(many)),
        ),
        ("dimensions", "more dimensions than the shape has", columns(value(6, 1, 3))),
        ("count-2-53", "2^53 chunks", columns(value(8, 1, 2**53))),
        ("at-2-53", "a place of 2^53", columns(value(14, 0, 2**53))),
        ("at-2-63", "a place of 2^63", columns(value(14, 0, 2**63))),
        ("file", "a file that there is not", columns(value(13, 0, 1))),
        ("kind-of-object", "an object of kind 2", columns(value(12, 0, 2))),
        ("part-2-names", "other names in the second part", columns(later(renamed(b"step", b"weighu")), (0, 1))),
        ("part-2-shape", "another shape in the second part", columns(later(value(7, 0, 5)), (0, 1))),
        ("part-2-count", "another number of chunks there", columns(later(value(8, 1, 3)), (0, 1))),
        ("part-2-more", "columns 3 and 4 there", columns(later(lambda found: found.update(_with_more(found))), (0, 1))),
        ("path-ends", "ends of paths that fall", files(puts({32: [24, 12]}))),
        ("paths-fall", "paths that fall", files(puts({33: b"__1_0.distcp__0_0.distcp"}))),
        (
            "path-utf-8",
            "a path that is not UTF-8",
            files(puts({33: b"__0_0.distcp__1_0.distc\xff"})),
        ),
        ("writer-short", "a writer id of 15 bytes", files(puts({35: bytes(31)}))),
        ("files-from", "files that begin at the second", BASE.files(root=put("files", 0, "from", value=1))),
        ("no-files", "no files", BASE.files(lambda index: index.update(files=[]))),
    ]
    noise = b"".join(hashlib.sha256(bytes([number % 256, number // 256])).digest() for number in range(520))
    bombs = [
        ("part-bomb", "a part of more than 256 times its stored size and 65536", bytes(2**20)),
        ("part-above-limit", "a part of more than 2^22 bytes", noise + bytes(2**22)),
    ]
    tight = BASE.files(parts=lambda data: data + b"\0")
    return [
        *(_holds(name, about, lambda made=made: made) for name, about, made in right),
        *(
            _breaks("M16", name, about, made, HELD if made[".metadata"].count(b"aeskw") else NOTHING)
            for name, about, made in cases
        ),
        *(_breaks("index", name, about, columns(puts({128: data}))) for name, about, data in bombs),
        _holds("large-part", "a part of 256 times its stored size", lambda: columns(puts({128: noise + bytes(2**21)}))),
        _breaks("index", "parts-continued", "a byte behind the parts", tight),
    ]


def _with_more(found: Columns) -> Columns:
    rest = dict(found)
    found.clear()
    return {1: rest.pop(1), 2: rest.pop(2), 3: [0, 0], 4: b"", **rest}


_PINWHEEL = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((1, 0), (2, 1)), ((2, 1), (1, 2))]


def _kinds() -> list[Vector]:
    first = ("items", "weight", "chunks", 0)
    framed = tuple(piece if piece.kind == OBJECT else replace(piece, kind=FRAMED) for piece in PIECES)
    transformed = world(framed, transforms=["stream.zstd/1"])
    raw, bare = world(PIECES, ()), world(framed, ())  # where no container says the same again
    dtypes = [
        ("C5", "quantized", "quint8"),
        ("C5", "without-elements", "float8"),
        ("C6", "empty", ""),
        ("C6", "capitals", "Float32"),
        ("C6", "of-33", "f" * 33),
    ]
    return [
        *(
            _breaks(
                "M16",
                f"kind-{kind}",
                f"a chunk of a tensor of kind {kind}",
                bare.files(put(*first, "kind", value=kind)),
            )
            for kind in (0, 1, 4)
        ),
        _breaks(
            "M6",
            "transformed-tensor",
            "a transform, and a chunk that is not framed",
            transformed.files(drop(*first, "framed")),
        ),
        *(
            _breaks(
                rule,
                f"dtype-{name}",
                f"the dtype {dtype!r:.20}",
                (raw if rule == "C5" else bare).files(put("items", "weight", "dtype", value=dtype)),
            )
            for rule, name, dtype in dtypes
        ),
    ]


# -- containers that are not those of the index ----------------------------------------------------------------------


def _raw() -> list[Vector]:
    """Items without containers."""
    raw = world(PIECES, ())
    first, step = ("items", "weight", "chunks", 0), ("items", "step")
    crc = raw.index["items"]["step"]["crc32c"]
    empty = [tensor("empty", "float32", (0, 3), b""), tensor("scalar", "bfloat16", (), b"\x80\x3f")]
    cases = [
        ("B1", "short", "a raw tensor that lacks a byte", _sized(first, 23)),
        ("B1", "long", "one with a byte too many", _sized(first, 25)),
        ("B1", "dtype", "one of a wider dtype", lambda index: index["items"]["weight"].update(dtype="float64")),
        ("B2", "tensor", "a raw tensor with a wrong CRC", put(*first, "crc32c", value="00000000")),
        ("B2", "object", "an object with a wrong CRC", put(*step, "crc32c", value="00000000")),
        ("B2", "swapped", "two chunks in each other's place", _exchanged),
        ("M16", "missing", "a chunk without CRCs", drop(*first, "crc32c")),
        ("M16", "none", "no CRC of an object that has bytes", put(*step, "crc32c", value="")),
        ("M16", "two", "two CRCs of one MiB", put(*step, "crc32c", value=2 * crc)),
        ("M2", "beyond", "an object that reaches a byte beyond its file", _sized(step, len(STEP.data) + 1)),
        ("C5", "quantized", "a raw tensor of a dtype without elements", put("items", "weight", "dtype", value="qint8")),
    ]
    return [
        _holds("raw", "an empty chain, and bare elements", raw.files),
        _holds("raw-odd", "bare elements at odd places", world(PIECES, (), gap=b"gap").files),
        _holds("raw-empty", "no elements, and no dimensions", world(empty, ()).files, empty),
        *(_breaks(rule, f"raw-{name}", about, raw.files(change)) for rule, name, about, change in cases),
    ]


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


def _containers() -> list[Vector]:
    """M8: what somebody can do who can write to the storage, and mends all CRCs."""

    def stored(**changes: Any) -> dict[str, bytes]:
        """The object's container is another one."""
        return world([*WEIGHT, replace(STEP, header=changes)]).files()

    bound = identity_of("step", writer=WRITERS[0], number=2)
    first = WEIGHT[0]
    moved = identity_of("weight", TENSOR, "float32", (2, 0), (2, 3), (4, 3), writer=WRITERS[0])
    cases = [
        ("unpublished", "a container that is not published", stored(flags=BOUND)),
        ("unbound", "a container that is not bound", stored(flags=0, identity=b"")),
        ("number", "another number", stored(identity=identity_of("step", writer=WRITERS[0], number=3))),
        ("writer", "another writer", stored(identity=identity_of("step", writer=WRITERS[1], number=2))),
        (
            "kind",
            "a tensor where an object belongs",
            stored(identity=identity_of("step", FRAMED, "float32", writer=WRITERS[0], number=2)),
        ),
        ("chain", "another chain", stored(chain=b"streamxf.lz4/1", identity=bound)),
        ("chain-longer", "a codec more", stored(chain=f"{ZSTD}\n{ZSTD}".encode(), identity=bound)),
        ("chain-empty", "no codec", stored(chain=b"", identity=bound)),
        (
            "offset",
            "the container of another chunk",
            world([replace(first, header={"identity": moved}), WEIGHT[1], STEP]).files(),
        ),
        ("dtype", "another dtype of the same size", _identity(dtype="int32")),
        ("shard", "another shape of the same size", _identity(shard=(3, 2), tensor=(4, 3))),
        ("tensor", "another shape of the tensor", _identity(tensor=(5, 3))),
        ("framed", "a framed tensor where elements belong", _identity(kind=FRAMED)),
        ("swapped", "two chunks changed places", BASE.files(_swap)),
    ]
    keyed = FULL.files(put("chain", value=[ZSTD, CHECKSUM, f"{ENCRYPT}#{wrapped()}"]))
    return [
        *(_breaks("M8", name, about, files) for name, about, files in cases),
        _breaks("M8", "wrapped-key", "a wrapped data key in the chain", keyed, HELD),
        _breaks("C1", "fragment-in-header", "a parameter of encoding in the header", *_fragment()),
        _breaks("C3", "data-key", "M8: a container that is sealed under another data key", _other_key(), HELD),
        _breaks("header", "not-a-container", "bare bytes, and a chain", _no_container()),
        _breaks(
            "footer", "longer", "a byte behind the container", BASE.files(_longer, data={FILE: BASE.data[FILE] + b"\0"})
        ),
        _breaks("footer", "shorter", "a container whose last byte is left out", BASE.files(_shorter)),
        *_signed(),
    ]


def _fragment() -> tuple[dict[str, bytes]]:
    made = world([*WEIGHT, replace(STEP, header={"chain": f"{ZSTD}#level=3".encode()})])
    return (made.files(put("chain", value=[f"{ZSTD}#level=3"])),)


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


def _signed() -> list[Vector]:
    """M7, and what a reader of a signed checkpoint can do who has the data key."""
    reader = holding("aeskw")
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
    cases: list[tuple[str, str, dict[str, bytes], Reader]] = [
        ("digest", "a bit of an item's digest", SIGNED.files(put(*digest, value="0" * 64)), reader),
        ("forged-by-a-reader", "an object that a reader put in its place", SIGNED.files(data=forged.data), reader),
        ("container", "a container without hashes", one.files(), reader),
        ("unexpected", "hashes in a container, and nobody signed", unexpected.files(), NOTHING),
    ]
    columns = [
        ("T-missing", "signed, and an item without a digest", SIGNED.files(drop(*digest)), reader),
        ("no-T", "signed, and no item has a digest", bare.files(), reader),
        ("T-unsigned", "not signed, and the items have digests", hashed.files(), HELD),
    ]
    return [
        *(_breaks("M7", name, about, files, by) for name, about, files, by in cases),
        *(_breaks("M16", name, about, files, by) for name, about, files, by in columns),
    ]


def _empties() -> list[Vector]:
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
    return [
        _breaks("block", "empty-crc", "an empty tensor whose block has a wrong CRC", of(flip)),
        _breaks("zstd", "empty-frame", "an empty tensor whose block does not decode", of(frame)),
        _breaks("C7", "empty-not-last", "an empty tensor whose block is not the last", of(not_last)),
        _breaks("C9", "empty-has-bytes", "an empty tensor whose block has bytes", of(full)),
        _breaks(
            "block",
            "empty-chunk-crc",
            "a chunk without elements whose block has a wrong CRC",
            world([*WEIGHT, hole]).files(),
        ),
    ]


# -- keys, vouchers and policy ---------------------------------------------------------------------------------------


def _keys() -> list[Vector]:
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
    cases: list[tuple[str, str, str, dict[str, bytes]]] = [
        ("M12", "line-1-alone", "no vouchers", lines(lambda found: found.__delitem__(slice(1, None)))),
        ("M12", "line-3", "a third line", lines(lambda found: found.append(found[0]))),
        ("M12", "not-ascii", "a byte 80", lines(lambda found: found.append("\x80"))),
        ("M12", "newline-at-end", "a newline at the end", lines(lambda found: found.append(""))),
        (
            "M12",
            "line-1-long",
            "a first line of more than 32768 bytes",
            lines(lambda found: found.__setitem__(0, found[0] + "&w=" + "x" * 32768)),
        ),
        ("M16", "key-missing", "a file without a wrapped data key", TWO.files(drop(*key))),
        ("M16", "no-keys", "no file has a wrapped data key", FULL.files(drop("files", 0, "key"))),
        ("M9", "altered", "a bit of the other writer's wrapped data key", TWO.files(put(*key, value=wrong))),
        ("M9", "two-keys", "one writer, two data keys", one_writer.files(put("files", 1, "writer", value=same))),
        (
            "M9",
            "zeros-and-wrapped",
            "one writer, zeros and its data key wrapped",
            one_key.files(put("files", 1, "writer", value=same)),
        ),
        ("C3", "other-key-zero", "M8: zeros for the data key of another writer", TWO.files(put(*key, value="00" * 40))),
    ]
    with_keys = replace(BASE, vouching=Vouching())
    zeros = put("files", 0, "key", value="00" * 40)
    return [
        *(_breaks(rule, name, about, files, HELD) for rule, name, about, files in cases),
        _breaks("M16", "keys-without-encryption", "wrapped data keys, and no encryption", BASE.files(zeros)),
        _breaks("M12", "unexpected", "keys, and a chain that does not encrypt", with_keys.files(), HELD),
        _breaks(
            "M12",
            "missing",
            "no keys, and a chain that encrypts",
            FULL.files(around=lambda made: made.change(keys=b"")),
        ),
        _breaks("K3", "checkpoint-none", "no key", FULL.files()),
        _breaks("K3", "checkpoint-another", "a key that it is not wrapped for", FULL.files(), OTHERS),
    ]


def _policy() -> list[Vector]:
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
    return [
        _breaks("K4", "checkpoint-swapped", "the vouchers of another index", swapped(FULL), HELD),
        _breaks("K4", "checkpoint-informative", "a flag that came after the vouchers", _vouched_flags(0, 1), HELD),
        _breaks(
            "K4",
            "checkpoint-mac",
            "a mac of other contents",
            vouched(lambda digest: f"{mac_of(other, mac)}&{voucher(digest)}"),
            HELD,
        ),
        _breaks(
            "K5",
            "checkpoint-none",
            "no voucher: whoever once had the data key can make this",
            vouched(lambda digest: mac_of(digest, mac)),
            HELD,
        ),
        _breaks(
            "K5",
            "checkpoint-wrong",
            "a voucher for other contents",
            vouched(lambda digest: f"{mac_of(digest, mac)}&{voucher(other)}"),
            HELD,
        ),
        _breaks("K6", "checkpoint-unsigned", "for a private key, not signed", public(x25519, None), holding(X25519)),
        _breaks("K6", "checkpoint-stranger", "signed by a stranger", public(hybrid, OTHER_SIGNER), holding(HYBRID)),
        _breaks(
            "K6",
            "checkpoint-no-trust",
            "signed, and nobody is trusted",
            public(hybrid, SIGNER),
            holding(HYBRID, trust=()),
        ),
        _breaks(
            "K6",
            "checkpoint-aeskw-unsigned",
            "a shared key, and a signature is required",
            FULL.files(),
            holding("aeskw"),
        ),
        _breaks("K7", "checkpoint-signers-alone", "signers to trust, and no keys", SIGNED.files(), SIGNERS),
        _breaks("K7", "checkpoint-not-encrypted", "not encrypted, and the reader has a key", BASE.files(), HELD),
    ]


def _descriptors() -> list[Vector]:
    cases = [
        ("descriptor", "capital", ["streamxf.Zstd/1"]),
        ("descriptor", "marked", ["!streamxf.zstd/1"]),
        ("D2", "fragment", [f"{ZSTD}#speed=3"]),
        ("descriptor", "fragment-twice", [f"{ZSTD}#level=3&level=3"]),
        ("descriptor", "fragment-twice-of-others", ["acme.delta/1#a=1&b=2&a=3"]),
        ("D3", "leading-zero", [f"{ZSTD}#level=03"]),
        ("D3", "minus-zero", [f"{ZSTD}#level=-0"]),
        ("D3", "plus", [f"{ZSTD}#level=~3"]),
        ("zstd", "level-23", [f"{ZSTD}#level=23"]),
        ("zstd", "level-minus-8", [f"{ZSTD}#level=-8"]),
        ("lz4", "level-13", ["streamxf.lz4/1#level=13"]),
        ("D1", "length", ["acme.delta/1?a=" + "b" * 1010]),
        ("D4", "checkpoint", ["acme.delta/1"]),
        ("D4", "checkpoint-version", ["streamxf.zstd/2"]),
    ]

    def of(chain: list[str]) -> dict[str, bytes]:
        texts = "\n".join(text.partition("#")[0] for text in chain).encode()
        pieces = [replace(STEP, header={"chain": texts})]
        return world(pieces).files(put("chain", value=chain))

    transforms = world([STEP], transforms=["stream.zstd/1"])
    framed = [replace(STEP, data=zstandard.ZstdCompressor().compress(STEP.data))]
    return [
        *(
            _breaks(rule, f"chain-{name}", f"the chain {' > '.join(chain)[:40]}", of(chain))
            for rule, name, chain in cases
        ),
        _breaks("C1", "nine-in-the-index", "nine descriptors", of([CHECKSUM] * 9)),
        _breaks(
            "D5",
            "reserved-in-the-index",
            "a stream transform with a reserved name",
            transforms.files(put("transforms", value=["streamxf.zstd/1"])),
        ),
        _breaks(
            "D5",
            "unknown",
            "a stream transform that no reader here knows",
            world(framed, transforms=["acme.scramble/1"]).files(),
        ),
    ]
