"""Whole checkpoints: their index, keys and trailer, and containers that are not those of the index."""

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import zstandard

from tests.forge import Band, Columns, MetadataParts, Parts, count_marks, encode, identity_of, split_metadata
from tests.sealing import (
    DEK,
    ENCRYPT,
    HYBRID,
    OTHER_DEK,
    SIGNER,
    X25519,
    Vouching,
    entry,
    hpke_wrap,
    index_digest,
    wrapped,
    zstd,
)
from tests.vectors.recipes.data import payload
from tests.vectors.recipes.runs import RUN
from tests.vectors.recipes.world import (
    BASE,
    CHECKSUM,
    FILE,
    FRAMED,
    FULL,
    OBJECT,
    OPEN,
    PIECES,
    RAW,
    SIGNED,
    STEP,
    TENSOR,
    TWO,
    VALUE,
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

STEP_OBJECT = replace(STEP, name="object")


def drop(*path: str | int) -> Change:
    """A change that takes a member out."""

    def change(index: dict[str, Any]) -> None:
        inner: Any = index
        for step in path[:-1]:
            inner = inner[step]
        del inner[path[-1]]

    return change


# -- what loads ------------------------------------------------------------------------------------------------------


def right() -> dict[str, Any]:
    framed = tuple(piece if piece.kind == OBJECT else replace(piece, kind=FRAMED) for piece in PIECES)
    x25519, hybrid = (wrapped([entry(*hpke_wrap(kind))]) for kind in (X25519, HYBRID))

    def public(text: str, signer: Any = SIGNER, keys: tuple[bytes, ...] = ()) -> World:
        return world(chain=(ENCRYPT,), vouching=Vouching(text, keys, signer))

    transformed = tuple(replace(piece, data=zstandard.ZstdCompressor().compress(piece.data)) for piece in framed)
    return locals()


def of_rank(made: World, rank: int, change: Change | None = None) -> dict[str, bytes]:
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


def odd() -> dict[str, Any]:
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
    ragged = [
        Piece("ragged", TENSOR, bytes(4), "uint8", (0, 0), (2, 2), (4, 3)),
        Piece("ragged", TENSOR, bytes(2), "uint8", (0, 2), (2, 1), (4, 3)),
        Piece("ragged", TENSOR, bytes(6), "uint8", (2, 0), (2, 3), (4, 3)),
    ]
    texts = f"{CHECKSUM}?algorithm=crc32c", f"{CHECKSUM}?algorithm=sha1", "streamxf.lz4/1#level=-65", "acme.delta/1"
    strange = [[text] for text in (*texts, "streamxf.nothing/1", "streamxf.zstd/2", "streamxf.floatzip/1?x=1")]
    names = [replace(STEP, name=name) for name in ("größe", "a/b", "../a", " ", "a\nb", "x" * 4000)]
    return locals()


def ignored(index: dict[str, Any]) -> None:
    """A member more in the root, in its run, and in what is said of items."""
    run = copy.deepcopy(RUN) | {"_host": "a\n"}
    run["metrics"]["_loss"] = "3fe0000000000000"
    index |= {"_later": [None, {"a": 2**53 - 1}], "_": "é", "run": run}
    for each in index["items"].values():
        each["_later"] = {"any": [True]}


def ignored_deeper(root: dict[str, Any]) -> None:
    """The same in bands and parts."""
    band = root["items"][0]
    for each in (band, *band["parts"], *root["files"]):
        each["_later"] = {"any": [True]}


def ignoring() -> dict[str, bytes]:
    def around(made: MetadataParts) -> MetadataParts:
        return made.change(keys=made.keys + b"&_later=a:b&_later=")

    return FULL.files(ignored, around=around)


def vouched_flags(vouched: int, stored: int) -> dict[str, bytes]:
    """Informative flags; the vouchers may be for others."""

    def around(made: MetadataParts) -> MetadataParts:
        digest = index_digest(made.packed_index, bytes([1, 1, 0, vouched]))
        by = Vouching()
        return made.change(keys=f"{by.wrapped}\n{by.vouchers(digest)}".encode(), format_bytes=bytes([1, 1, 0, stored]))

    return FULL.files(around=around)


def nest(depth: int) -> Any:
    made: Any = {}
    for _ in range(depth - 1):
        made = [made]
    return made


def checked(packed: bytes) -> bytes:
    text = zstandard.ZstdDecompressor().decompress(packed)
    return zstandard.ZstdCompressor(write_content_size=True, write_checksum=True).compress(text)


def unused(index: dict[str, Any]) -> None:
    index["files"].append({"path": "another", "size": 7, "writer": WRITERS[0].hex()})


# -- trailer, frame and JSON -----------------------------------------------------------------------------------------


def trailers() -> dict[str, Any]:
    right = BASE.files()
    metadata = right[".metadata"]

    def of(data: bytes) -> dict[str, bytes]:
        return right | {".metadata": data}

    def around(**changes: Any) -> dict[str, bytes]:
        return BASE.files(around=lambda made: made.change(**changes))

    text = json.dumps(encode(BASE.index)[0]).encode()
    return locals()


def frame(data: bytes) -> bytes:
    """As any writer compresses."""
    return zstandard.ZstdCompressor().compress(data)


def marked(text: bytes, count: int) -> bytes:
    """The JSON of a root with as many commas and brackets."""
    zeros = count - count_marks(text) - 1
    return text[:-1] + b',"_":[' + b",".join([b"0"] * zeros) + b"]}"


def flipped(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def as_json() -> dict[str, Any]:
    """The JSON as a whole, and M1."""
    size = '"items":2'

    def replaced(old: str, new: str) -> Callable[[str], str]:
        def change(text: str) -> str:
            assert text.count(old) >= 1
            return text.replace(old, new, 1)

        return change

    return locals()


def members() -> dict[str, Any]:
    """Members that are missing, unknown, of another type, or have a value that there is not."""
    step, weight, band, part = ("items", "step"), ("items", "weight"), ("items", 0), ("items", 0, "parts", 0)
    return locals()


def paths() -> dict[str, Any]:
    second = {"identity": identity_of("weight", TENSOR, "float32", (2, 0), (2, 3), (4, 3), writer=WRITERS[0])}
    again = world([WEIGHT[0], replace(WEIGHT[1], writer=1, header=second), STEP], (ENCRYPT,), deks=(DEK, DEK)).files(
        _one_writer
    )
    return locals()


def _one_writer(index: dict[str, Any]) -> None:
    one, two = index["files"]
    two |= {"writer": one["writer"], "key": one["key"]}
    index["items"]["weight"]["chunks"][1]["number"] = 0


def shift(index: dict[str, Any], by: int) -> None:
    index["items"]["step"]["at"] += by


# -- chunks ----------------------------------------------------------------------------------------------------------


def tiles() -> dict[str, Any]:
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

    def staircase(dims: int) -> dict[str, bytes]:
        """One chunk more than dimensions, each of which ends one of them."""
        boxes = [((1,) * at + (0,) * (dims - at), (1,) * at + (1,) + (2,) * (dims - at - 1)) for at in range(dims)]
        boxes.append(((1,) * dims, (1,) * dims))
        made = [Piece("t", TENSOR, bytes(prod(size)), "uint8", at, size, (2,) * dims) for at, size in sorted(boxes)]
        return world([*WEIGHT, *made]).files()

    stored = {
        "gap": tiles(((0,), (2,)), ((3,), (1,)), shape=(4,)),
        "overlap": tiles(((0,), (3,)), ((2,), (2,)), shape=(4,)),
        "overlap-and-gap": tiles(((0,), (2,)), ((1,), (2,)), shape=(4,)),
        "pinwheel": tiles(*PINWHEEL, shape=(3, 3)),
        "same-offset": tiles(((0,), (4,)), ((0,), (0,)), shape=(4,)),
        "twice": tiles(((0,), (4,)), ((0,), (4,)), shape=(4,)),
        "falling": tiles(
            ((0,), (2,)), ((2,), (2,)), shape=(4,), change=lambda index: index["items"]["t"]["chunks"].reverse()
        ),
    }
    return locals()


def parts() -> dict[str, Any]:
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
        found |= {99: [0, 0]}

    many: Columns = {8: [2, 1], 6: [0, 0], 7: [], 5: [0, 0], 10: [], 11: []}
    noise = b"".join(hashlib.sha256(bytes([number % 256, number // 256])).digest() for number in range(520))
    return locals()


def increments() -> dict[str, Any]:
    """Indexes that name files of other saves, with nothing beneath, or containers of the same checkpoint."""

    def of(beneath: list[int], lower: list[int], flags: int = 1, **more: Any) -> dict[str, bytes]:
        bases = more.pop("bases", [{"save_id": "ab" * 16, "folder": "step-1"}])
        return BASE.files(
            more.pop("change", None),
            bands=[Band(["step", "weight"], change=lambda found: found.update({21: beneath, 22: lower}))],
            root=put("bases", value=bases),
            around=lambda made: made.change(format_bytes=bytes([1, 1, flags, 0])),
            **more,
        )

    return locals()


def with_more(found: Columns) -> Columns:
    rest = dict(found)
    found.clear()
    return {1: rest.pop(1), 2: rest.pop(2), 3: [0, 0], 4: b"", **rest}


PINWHEEL = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((1, 0), (2, 1)), ((2, 1), (1, 2))]


def kinds() -> dict[str, Any]:
    first = ("items", "weight", "chunks", 0)
    framed = tuple(piece if piece.kind == OBJECT else replace(piece, kind=FRAMED) for piece in PIECES)
    raw, bare = world(PIECES, ()), world(framed, ())  # where no container says the same again
    return locals()


# -- containers that are not those of the index ----------------------------------------------------------------------


def raw() -> dict[str, Any]:
    """Items without containers."""
    raw = world(PIECES, ())
    first, step = ("items", "weight", "chunks", 0), ("items", "step")
    return locals()


def sized(path: tuple[str | int, ...], size: int) -> Change:
    """Another size, with the CRC of the bytes that are there."""

    def change(index: dict[str, Any]) -> None:
        place: Any = index["items"]
        for step in path[1:]:
            place = place[step]
        data = world(PIECES, ()).data[FILE][place["at"] :][:size]
        place |= {"bytes": size, "crc32c": crcs_of(data)}

    return change


def exchanged(index: dict[str, Any]) -> None:
    one, other = index["items"]["weight"]["chunks"]
    one["at"], other["at"] = other["at"], one["at"]


def containers() -> dict[str, Any]:
    """M8: what somebody can do who can write to the storage, and mends all CRCs."""

    def stored(**changes: Any) -> dict[str, bytes]:
        """The object's container is another one."""
        return world([*WEIGHT, replace(STEP, header=changes)]).files()

    bound = identity_of("step", writer=WRITERS[0], number=2)
    keyed = FULL.files(put("chains", value=[[ZSTD, CHECKSUM, f"{ENCRYPT}#{wrapped()}"]]))
    return locals()


def values() -> dict[str, Any]:
    """Values, which share a container."""
    step, lr = Piece("step", VALUE, b"\x18\x64"), Piece("lr", VALUE, b"\xf9\x38\x00")
    betas = Piece("betas", VALUE, b"\xd9\xd3\x53\x82\xf9\x38\x00\xf9\x3a\x00")
    group = Piece("group", VALUE, b"\xd9\xd3\x54\x84\x64step\x01\x62lr\xf6")
    both = (*WEIGHT, step, STEP_OBJECT, lr, betas, group)
    apart = (step, replace(lr, writer=1), betas)
    usual = world(both)

    def spanned(name: str, begin: int, end: int, made: World = usual) -> dict[str, bytes]:
        """Another place in the stream."""
        return made.files(put("items", name, "span", value=[begin, end]))

    def stored(change: Callable[[Parts], Parts]) -> dict[str, bytes]:
        return world([*WEIGHT, replace(step, stored=change), lr]).files()

    def of_header(**changes: Any) -> dict[str, bytes]:
        return world([replace(step, header=changes), lr]).files()

    def of_identity(name: str, kind: int = VALUE, *more: Any, **facts: Any) -> dict[str, bytes]:
        return of_header(identity=identity_of(name, kind, *more, **({"writer": WRITERS[0], "number": 0} | facts)))

    def in_two() -> dict[str, bytes]:
        """The values of a writer in two containers."""
        made, other = world([step, lr]), world([replace(betas, header={"identity": two})])
        data = made.data[FILE] + other.data[FILE]

        def change(index: dict[str, Any]) -> None:
            size, place = len(made.data[FILE]), other.index["items"]["betas"]
            index["items"]["betas"] = place | {"at": size, "number": 1}
            index["files"][0]["size"] = len(data)

        return made.files(change, data={FILE: data})

    two = identity_of("", VALUE, writer=WRITERS[0], number=1)
    return locals()


def fragment() -> dict[str, bytes]:
    made = world([*WEIGHT, replace(STEP, header={"chain": f"{ZSTD}#level=3".encode()})])
    return made.files(put("chains", value=[[f"{ZSTD}#level=3"]]))


def of_identity(**changes: Any) -> dict[str, bytes]:
    piece = replace(WEIGHT[0], **changes)
    identity = identity_of(
        piece.name, piece.kind, piece.dtype, piece.offset, piece.shard, piece.tensor, writer=WRITERS[0], number=0
    )
    return world([replace(WEIGHT[0], header={"identity": identity}), WEIGHT[1], STEP]).files()


def swap(index: dict[str, Any]) -> None:
    one, two = index["items"]["weight"]["chunks"]
    for member in ("at", "bytes"):
        one[member], two[member] = two[member], one[member]


def longer(index: dict[str, Any]) -> None:
    index["files"][0]["size"] += 1
    index["items"]["step"]["bytes"] += 1


def shorter(index: dict[str, Any]) -> None:
    index["items"]["step"]["bytes"] -= 1


def no_container() -> dict[str, bytes]:
    made = world([STEP], ())
    step = put("items", "step", "number", value=0)
    return made.files(lambda index: (index.update(chains=[[ZSTD]]), index["items"]["step"].pop("crc32c"), step(index)))


def signed() -> dict[str, Any]:
    """Digests, and what a reader of a signed checkpoint can do who has the data key."""
    forged = world(
        [*WEIGHT, replace(STEP, data=STEP.data[::-1])], chain=(ZSTD, ENCRYPT), vouching=Vouching(signer=SIGNER)
    )
    lost, raw = (replace(made, signers=()) for made in (OPEN, RAW))
    other, swapped = (
        world([*WEIGHT, replace(STEP, data=STEP.data[::-1])], chain=chain, signers=(SIGNER,)) for chain in ((ZSTD,), ())
    )

    def sign(index: dict[str, Any]) -> None:
        """As if it were signed by nobody whom any reader knows."""
        index |= {"digests": OPEN.index["digests"]}

    def keys(*lines: str) -> Callable[[MetadataParts], MetadataParts]:
        return lambda made: made.change(keys="\n".join(lines).encode())

    def signed_by(*signers: Any) -> World:
        return world(signers=signers)

    def also(text: str, made: World = OPEN) -> dict[str, bytes]:
        """With another signature before its own."""
        return made.files(around=lambda parts: parts.change(keys=parts.keys.replace(b"\n", f"\n{text}&".encode())))

    assert len(forged.data[FILE]) == len(SIGNED.data[FILE])
    return locals()


def empties() -> dict[str, Any]:
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

    return locals()


# -- keys, vouchers and policy ---------------------------------------------------------------------------------------


def keys() -> dict[str, Any]:
    def lines(change: Callable[[list[str]], object], made: World = TWO) -> dict[str, bytes]:
        def around(parts: MetadataParts) -> MetadataParts:
            found = parts.keys.decode("ascii").split("\n")
            change(found)
            return parts.change(keys="\n".join(found).encode("latin-1"))

        return made.files(around=around)

    other = bytes.fromhex(TWO.index["files"][1]["key"])
    key, wrong = ("files", 1, "key"), (other[:-1] + bytes([other[-1] ^ 1])).hex()
    moved = identity_of("weight", TENSOR, "float32", (2, 0), (2, 3), (4, 3), writer=WRITERS[0], number=1)
    pieces = [WEIGHT[0], replace(WEIGHT[1], writer=1, header={"identity": moved}), STEP]
    one_writer, one_key = (world(pieces, (ENCRYPT,), deks=deks) for deks in ((DEK, OTHER_DEK), (DEK, DEK)))
    return locals()


def policy() -> dict[str, Any]:
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

    mac = FULL.vouching.wrapped if FULL.vouching is not None else ""
    return locals()


def descriptors() -> dict[str, Any]:
    def of(chain: list[str]) -> dict[str, bytes]:
        texts = "\n".join(text.partition("#")[0] for text in chain).encode()
        pieces = [replace(STEP, header={"chain": texts})]
        return world(pieces).files(put("chains", value=[chain]))

    return locals()
