"""A decoder of checkpoints, written from docs/format.md and the pages below it alone. It favours clarity over speed.

`load` reads a checkpoint, `read_container` a single container, `read_plain` a plain file, `read_note` a note.
reference_codecs.py has codecs.md and floatzip.md, reference_values.py values.md, and reference_keys.py keys.md, but
for key files, which vectors/key_files.py reads. Each refusal names the rule that was broken ("C9", "M5", "K6"), or its
heading or codec where the rule has no number.
"""

import hmac
import json
import re
import struct
from collections import namedtuple
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import accumulate, combinations, pairwise, product
from math import prod
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

from tests.reference_codecs import Block, Fields, Refused, check, crc, decode, parse_descriptor, refusing, undo, unzstd
from tests.reference_keys import Reader, check_signatures, check_vouchers, hkdf, parse_vouchers, parse_wrapped, unwrap
from tests.reference_values import parse_value

KEYED, BOUND, PUBLISHED, BASED = 1, 2, 4, 8
INCREMENT = 1
OBJECT, TENSOR, FRAMED, VALUE = 1, 2, 3, 4
DTYPES = {
    1: "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "uint16 int16 float16 bfloat16",
    4: "uint32 int32 float32 complex32",
    8: "uint64 int64 float64 complex64",
    16: "complex128",
}
ELEMENT_SIZE = {dtype: size for size, dtypes in DTYPES.items() for dtype in dtypes.split()}
DTYPE = re.compile("([a-z][a-z0-9_]{0,31}):(8|16|32|64|128)")


MAX_NUMBER, MIB = (1 << 53) - 1, 1 << 20


def check_format(format_bytes: bytes, known: int, where: str) -> None:
    version, suite, critical, _ = format_bytes
    check(version == 1 and suite == 1 and not critical & ~known, f"{where}: version, suite or critical flags")


# -- Containers

Identity = namedtuple("Identity", "writer number kind dtype offset shard tensor name")
Header = namedtuple("Header", "size block_size flags salt chain codecs identity hash seal base")
Table = namedtuple("Table", "raw_size ends edges")  # these are the first digest


def parse_header(data: bytes) -> Header:
    f = Fields(data, "header")
    magic, format_bytes, log2, chain_len, ident_len, salt = f.unpack("8s4sB2H16s")
    flags = format_bytes[2]
    check(magic == bytes.fromhex("D35358460D0A1A0A"), "header: magic")
    check_format(format_bytes, KEYED | BOUND | PUBLISHED | BASED, "header")
    check(16 <= log2 <= 24, "header: block_log2")
    check(chain_len <= 1024 and ident_len <= 4096, "header: lengths")
    chain_data, identity_data, base = f.take(chain_len), f.take(ident_len), f.take(32 if flags & BASED else 0)
    digest = sha256(data[: f.at]).digest()
    check(not base or flags & PUBLISHED, "C2: based, and not published")
    seal = f.take(32 if flags & KEYED else 0)
    check(crc(data[: f.at]) == f.take(4), "header: crc32c")
    with refusing("C1", UnicodeDecodeError):
        chain = chain_data.decode("ascii").split("\n") if chain_data else []
    marked = [text.startswith("!") for text in chain]
    check(len(chain) <= 8 and marked == sorted(marked, reverse=True), "C1: more than 8, or a transform after a codec")
    descriptors = [parse_descriptor(text.removeprefix("!")) for text in chain]
    check(b"#" not in chain_data, "C1: a fragment")
    codecs, identity = descriptors[sum(marked) :], parse_identity(identity_data) if identity_data else None
    check(bool(flags & KEYED) == any(d.name == "streamxf.encrypt" for d in codecs), "C2: keyed")
    check(bool(flags & BOUND) == bool(identity) and (identity or not flags & PUBLISHED), "C2: bound, or published")
    check(not any(d.name.startswith("streamxf.") for d in descriptors[: sum(marked)]), "D5")
    if identity and identity.kind in (TENSOR, VALUE):
        rule = "C5" if identity.kind == TENSOR else "C15"
        check(flags & PUBLISHED and not any(marked), f"{rule}: published, and without transforms")
    return Header(f.at, 1 << log2, flags, salt, chain, codecs, identity, digest, seal, base)


def parse_identity(data: bytes) -> Identity:
    f = Fields(data, "identity")
    writer, number, kind, ndim, dtype_len, width = f.unpack("16sQ4B")
    check(OBJECT <= kind <= VALUE and ndim <= 64 and dtype_len <= 36, "identity: bytes 24 to 26")
    check(width in (1, 2, 4, 8), "identity: width")
    check(kind in (TENSOR, FRAMED) or ndim == dtype_len == 0, "identity: an object has no dtype and no dimensions")
    with refusing("identity", UnicodeDecodeError):
        dtype = f.take(dtype_len).decode("ascii")
        integers = {1: "B", 2: "H", 4: "I", 8: "Q"}[width]
        offset, shard, tensor = (f.unpack(f"{ndim}{integers}") for _ in range(3))
        name = f.rest().decode("utf-8")
    check(bool(name) == (kind != VALUE), "identity: no name, or one of values")
    needed = max((*offset, *shard, *tensor), default=0)
    check(width == min(size for size in (1, 2, 4, 8) if needed < 1 << 8 * size), "identity: width")
    check(number <= MAX_NUMBER, "C4: the number")
    if kind in (TENSOR, FRAMED):
        check_dtype(dtype)
        check_place(offset, shard, tensor, "C4")
    return Identity(writer, number, kind, dtype, offset, shard, tensor, name)


def check_dtype(dtype: str) -> None:
    match = DTYPE.fullmatch(dtype)
    check(match and ELEMENT_SIZE.get(match[1], int(match[2]) // 8) * 8 == int(match[2]), "C16")


def element_size(dtype: str) -> int:
    return int(dtype.partition(":")[2]) // 8


def check_place(offset: Sequence[int], shard: Sequence[int], tensor: Sequence[int], rule: str) -> None:
    check(len(offset) == len(shard) == len(tensor) <= 64, f"{rule}: dimensions")
    inside = all(o + s <= t for o, s, t in zip(offset, shard, tensor, strict=True))
    check(inside and prod(size or 1 for size in tensor) <= MAX_NUMBER, f"{rule}: outside of the tensor, or too large")


def unseal(header: Header, data_key: bytes | None) -> bytes:
    """The stream key, after the seal has shown that the data key made this header; empty if nothing is encrypted."""
    if not header.flags & KEYED:
        return b""
    check(data_key, "K3: the container is encrypted, and no key was given")
    both = hkdf(data_key or b"", b"streamxf/1 stream" + header.hash, 64, header.salt)
    check(hmac.compare_digest(both[32:], header.seal), "C3")
    return both[:32]


def parse_table(data: bytes, header: Header) -> Table:
    """Table and footer of a container that is all of `data`."""
    raw_size, stored, magic = Fields(data[max(len(data) - 20, header.size) :], "footer").unpack("Q4s8s")
    check(magic == bytes.fromhex("0A1A0D0A465853D3"), "footer: magic")
    check(raw_size <= 1 << 48, "footer: raw_size")
    b = header.block_size
    n = max(1, (raw_size + b - 1) // b)  # C11
    start = len(data) - 20 - 4 * n
    check(start >= header.size, "C10: the table has no room")
    covered = data[start:-12]
    check(crc(header.hash[:16] + covered) == stored, "footer: crc32c")
    lengths = [length for (length,) in struct.iter_unpack("<I", covered[:-8])]
    check(all(length <= b + b // 16 + 1024 and (length or n == 1) for length in lengths), "C8: an entry of the table")
    ends = list(accumulate((8 + length for length in lengths), initial=header.size))[1:]
    check(ends[-1] == start, "C10: the table does not begin where the last block ends")
    if header.identity and header.identity.kind == TENSOR:
        check(raw_size == prod(header.identity.shard) * element_size(header.identity.dtype), "C5: the stream's size")
    return Table(raw_size, ends, sha256(data[: header.size] + data[start:]).digest())


Decoder = Callable[[int], bytes]  # gives a block


def decoder_of(
    data: bytes, header: Header, table: Table, key: bytes, digests: Sequence[bytes] = (), base: Decoder | None = None
) -> Decoder:
    check(not digests or digests[0] == table.edges, "C13: the first digest")
    check(not header.base or base, "C17: a difference, and nothing beneath")
    n, b = len(table.ends), header.block_size

    def decode_block(i: int) -> bytes:
        stored, last = data[table.ends[i - 1] if i else header.size : table.ends[i]], i == n - 1
        [word] = struct.unpack("<I", stored[:4])
        check(word >> 31 == last, "C7")
        check(word & 0x7FFFFFFF == len(stored) - 8, "C10: a block's head has another length than its entry")
        check(crc(header.hash[:16] + struct.pack("<II", i, word) + stored[8:]) == stored[4:8], "block: crc32c")
        check(not digests or digests[i + 1] == sha256(stored).digest(), "C13")
        content = decode(stored[8:], header.codecs, b, Block(i, last, key, base))
        check(len(content) == (table.raw_size - i * b if last else b), "C9")
        return content

    return decode_block


def decode_blocks(data: bytes, header: Header, table: Table, key: bytes, digests: Sequence[bytes] = ()) -> bytes:
    """The stream. All blocks are decoded before any is handed out (C14)."""
    return b"".join(map(decoder_of(data, header, table, key, digests), range(len(table.ends))))


def read_container(data: bytes, data_key: bytes | None = None) -> tuple[Header, bytes]:
    """Decode a container of which nothing else is known. Stream transforms are not undone."""
    header = parse_header(data)
    stream_key = unseal(header, data_key)
    return header, decode_blocks(data, header, parse_table(data, header), stream_key)


# -- Plain files


def read_plain(file: bytes, reader: Reader) -> bytes:
    f = Fields(file, "prefix")
    magic, format_bytes, key_len = f.unpack("8s4sI")
    check(magic == bytes.fromhex("D353584B0D0A1A0A") and key_len <= 65536, "prefix: magic or key_len")
    check_format(format_bytes, 0, "prefix")
    key_data = f.take(key_len)
    check(crc(file[: f.at]) == f.take(4), "prefix: crc32c")
    data = f.rest()
    header = parse_header(data)
    check(bool(header.flags & KEYED) == bool(key_data), "prefix: a wrapped key exactly if keyed")
    check(not header.flags & (BOUND | PUBLISHED) and len(header.codecs) == len(header.chain), "P1: bound, transforms")
    if not key_data:
        check(not reader.keys, "K7: not encrypted")
        check(not reader.trust, "K7: not signed")
        return decode_blocks(data, header, parse_table(data, header), b"")

    count, seal_len, stored, magic = Fields(data[max(len(data) - 20, 0) :], "seal").unpack("2I4s8s")
    check(magic == bytes.fromhex("0A1A0D0A4B5853D3"), "seal: magic")
    check(1 <= seal_len <= min(65536, len(data) - 20), "seal: seal_len")
    data, seal = data[: -20 - seal_len], data[-20 - seal_len :]
    check(32 * count <= len(data), "seal: the number of digests")
    data, stored_digests = data[: len(data) - 32 * count], data[len(data) - 32 * count :]
    check(crc(seal[:-12]) == stored, "seal: crc32c")
    with refusing("K1: ASCII", UnicodeDecodeError):
        wrapped, vouchers = parse_wrapped(key_data.decode("ascii")), parse_vouchers(seal[:-20].decode("ascii"))
    check(bool(count) == bool(vouchers.signatures), "P1: digests exactly if signed")
    table, digests = parse_table(data, header), [stored_digests[at : at + 32] for at in range(0, 32 * count, 32)]
    check(count in (0, 1 + len(table.ends)) and digests[:1] in ([], [table.edges]), "P1: other digests")
    digest = sha256(b"streamxf/1 plain" + format_bytes + (stored_digests or table.edges)).digest()
    data_key = check_vouchers(vouchers, wrapped, digest, reader)
    return decode_blocks(data, header, table, unseal(header, data_key), digests)


# -- The index

# A chunk of a tensor, or an object: where it is, and what its container says of it; the columns of its file.
Part = namedtuple("Part", "at size first crcs span file identity chain lower")
File = namedtuple("File", "path size writer key")
# The parts of each item; dtype and shape of each tensor; the first wrapped data key; all digests, None if unsigned.
Index = namedtuple("Index", "transforms parts shapes wrapped run digests")
# What JSON has to look like: a type, a pattern, a list of something, something or null, or an object with these members
# ("?" marks optional ones), and others whose names begin with "_".
HASH, HEX32 = "[0-9a-f]{64}", "[0-9a-f]{32}"
ENTRY = {"from": int, "bytes": int, "raw": int, "sha256": HASH}
MORE = {"properties?": dict, "path?": list}
FILE = {"path": str, "size": int}
RUN = {"run": HEX32, "name": str, "step": int, "time": int, "rules": dict, "metrics": dict}
RUN |= {"continues?": {"step": int, "save_id": HEX32}, "line?": [int]}
ROOT = {
    **{"save_id": HEX32, "rank": (int, None), "transforms": [str], "chains": [[str]], "dtypes": [str]},
    **{"files": [ENTRY], "items": [{"first": str, "last": str, "items": int, "parts": [ENTRY]}]},
    **{"modules": [str], "packages": dict, "extra": dict, "digests?": [ENTRY]},
    **{"group?": HEX32, "ranks?": int},
    "run?": RUN,
}
FORMS = {
    "commit": {"save_id": HEX32, "run": RUN, "files": [{**FILE, "sha256?": HASH, "checksum?": str}]},
    "note": {"save_id": HEX32, "time": int, "metrics": dict, "sha256": dict},
    "saving": {"run": HEX32, "name": str, "time": int, "session": HEX32, "before": dict, "framework": bool},
}


def conform(value: Any, schema: Any, name: str) -> None:
    if isinstance(schema, tuple):
        schema = schema[0] if value is not None else type(None)
    if isinstance(schema, dict):
        members = {member.rstrip("?"): inner for member, inner in schema.items()}
        needed = {member for member in schema if not member.endswith("?")}
        check(isinstance(value, dict), f"M1: the type of {name}")
        for member in [member for member in value if member.startswith("_") and member not in members]:
            check_depth(value.pop(member), 128, "M1")
        check(needed <= value.keys() <= members.keys(), f"M1: members of {name}")
        for member, inner in value.items():
            conform(inner, members[member], member)
    elif isinstance(schema, list):
        check(isinstance(value, list), f"M1: the type of {name}")
        for inner in value:
            conform(inner, schema[0], name)
    elif isinstance(schema, str):
        check(isinstance(value, str) and re.fullmatch(schema, value), f"index: {name}")
    else:
        check(type(value) is schema, f"M1: the type of {name}")


def parse_json(data: bytes, where: str = "index", rule: str = "M1") -> Any:
    def natural(text: str) -> int:
        check(text.isdigit() and len(text) <= 16 and int(text) <= MAX_NUMBER, f"{rule}: a number")
        return int(text)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        check(len(dict(pairs)) == len(pairs), f"{rule}: a name stands twice")
        return dict(pairs)

    # how deep json reads depends on the Python, and deeper than it reads is deeper than any rule allows
    with refusing(f"{rule}: the depth", RecursionError), refusing(f"{where}: no JSON in ASCII", ValueError):
        numbers = {"parse_int": natural, "parse_float": natural, "parse_constant": natural}
        value = json.loads(data.decode("ascii"), object_pairs_hook=unique, **numbers)
    with refusing(f"{rule}: a lone surrogate", UnicodeEncodeError, RecursionError):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def check_depth(value: Any, left: int, rule: str) -> None:
    if isinstance(value, dict | list):
        check(left, f"{rule}: the depth")
        for inner in value.values() if isinstance(value, dict) else value:
            check_depth(inner, left - 1, rule)


def leaves(value: Any) -> list[Any]:
    """All that is in arrays and objects, names of members too."""
    if isinstance(value, dict):
        return [*value, *leaves([*value.values()])]
    return [leaf for inner in value for leaf in leaves(inner)] if isinstance(value, list) else [value]


def check_run(run: Any, rank: int | None) -> None:
    check(rank is None, "M1: only .metadata has a run")
    conform([*run["metrics"].values()], [str], "metrics")
    found = leaves(run)
    check(not any(re.search(r"[\x00-\x1f\x7f-\x9f]", text) for text in found if type(text) is str), "M13: a control")
    name = run["name"]
    check(1 <= len(name.encode()) <= 255 and "/" not in name and name not in (".", ".."), "M13: name")
    check(not any(leaf is None for leaf in found), "M13: null")
    check(run.get("line") != [], "index: an empty line")
    check_depth(run["rules"], 8, "M13")
    for text in run["metrics"].values():
        check(re.fullmatch("[0-9a-f]{16}", text), "M14: not 16 digits")
        [number] = struct.unpack(">d", bytes.fromhex(text))
        check(number == number or text == "7ff8000000000000", "M14: another NaN")


# The trailer's digest of the head; head and parts; the format bytes; the root or the content of a note; the keys.
Sections = namedtuple("Sections", "head_digest head parts format_bytes packed lines")


def split_metadata(data: bytes, known: int = 0) -> Sections:
    """R1."""
    check(data[-8:] == bytes.fromhex("0A1A0D0A4D5853D3"), "trailer: magic")
    trailer = Fields(data[-104:], "trailer").unpack("QQII4sI32s32s8x")
    head_len, parts_len, root_len, keys_len, format_bytes, zeros, head_digest, digest = trailer
    check(1 <= root_len <= 1 << 26 and keys_len <= 2 * 65536 + 1, "trailer: lengths")
    check_format(format_bytes, known, "trailer")
    check(zeros == 0, "trailer: zeros")
    check(head_len + parts_len + root_len + keys_len + 104 == len(data), "trailer: the lengths are not the file's")
    f = Fields(data, "trailer")
    head, parts, root, keys = (f.take(size) for size in (head_len, parts_len, root_len, keys_len))
    check(sha256(data[head_len + parts_len : -40]).digest() == digest, "trailer: the second digest")
    with refusing("M12: ASCII", UnicodeDecodeError):
        lines = keys.decode("ascii").split("\n") if keys else []
    return Sections(head_digest, head, parts, format_bytes, root, lines)


def check_keys(found: Sections, label: bytes, reader: Reader) -> Any:
    """R2; the vouchers, None if there are no keys."""
    if not found.lines:
        check(not reader.keys, "K7: not encrypted")
        return check(not reader.trust, "K7: not signed")
    check(len(found.lines) == 2 and found.lines[1] and max(map(len, found.lines)) <= 65536, "M12: lines 1 and 2")
    digest, vouchers = sha256(label + found.format_bytes + found.packed).digest(), parse_vouchers(found.lines[1])
    check(bool(found.lines[0]) == bool(vouchers.mac), "K4: a MAC exactly if there is a wrapped data key")
    check(found.lines[0] or not reader.keys, "K7: not encrypted")
    wrapped = parse_wrapped(found.lines[0]) if found.lines[0] else None
    if reader.keys:
        check_vouchers(vouchers, wrapped, digest, reader)
    elif reader.trust:
        check_signatures(vouchers, digest, reader.trust)
    return vouchers


def read_note(data: bytes, reader: Reader, form: str | None = None) -> Any:
    """The content of a note, which a reader without keys reads, too; of one of `FORMS`."""
    check(len(data) <= 1 << 23, "N1: its size")
    found = split_metadata(data)
    check(found.head + found.parts == b"" and found.head_digest == sha256(b"").digest(), "N1: a head, or parts")
    check_keys(found, b"streamxf/1 note", reader)
    text = unzstd_root(found.packed, "N1")
    check(len(text) <= 1 << 23, "N1: the size of its content")
    check(count_marks(text) <= 1 << 19, "N1: commas and brackets")
    content = parse_json(text, "N2", "N2")
    check_depth(content, 128, "N2")
    if form is not None:
        with refusing("N7", Refused):
            conform(content, FORMS[form], "the note")
            for name, schema in (("metrics", "[0-9a-f]{16}"), ("sha256", HASH), ("before", str)):
                conform([*content.get(name, {}).values()], [schema], name)
            check_run(content["run"], None) if form == "commit" else None
        paths = [file["path"] for file in content.get("files", ())]
        for path in (*paths, *content.get("sha256", ()), *content.get("before", ())):
            check(1 <= len(path.encode()) <= 4096 and "\0" not in path, "N5")
            check(not {"", ".", ".."} & {*path.split("/")}, "N5")
    return content


def unzstd_root(packed: bytes, rule: str) -> bytes:
    text = unzstd(packed, min(1 << 26, max(16 * len(packed), 1 << 20)))
    check(count_marks(text) <= max(len(packed) // 3, 65536), f"{rule}: commas and brackets")
    return text


def count_marks(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def read_index(data: bytes, rank: int | None, reader: Reader) -> Index:
    """R1 to R3, for all items."""
    found = split_metadata(data, INCREMENT)
    vouchers = check_keys(found, b"streamxf/1 index", reader)
    root = parse_json(unzstd_root(found.packed, "index"))
    return parse_root(root, rank, found, signed=bool(vouchers and vouchers.signatures))


def parse_root(root: Any, rank: int | None, found: Sections, signed: bool) -> Index:
    increment = found.format_bytes[2:3] == b"\1"
    conform(root, ROOT | ({"bases": [{"save_id": HEX32, "folder": str}]} if increment else {}), "the root")
    folders = {base["folder"] for base in root.get("bases", ())}
    for folder in folders:
        check_file_path(folder)
        check("/" not in folder, "M20: a folder")
    conform([*root["packages"].values()], [str], "packages")
    check_depth(root["extra"], 128, "M1")
    if "run" in root:
        check_run(root["run"], rank)
    check(rank is not None or not {"group", "ranks"} & root.keys(), "M19: only ranks have group and ranks")
    check("ranks" not in root or (rank or 0) < root["ranks"] < 1 << 31, "M19: the number of ranks")
    check(root["rank"] == rank and (rank is None or rank < (1 << 31) - 1), "M10")
    transforms, *chains = ([parse_descriptor(text) for text in each] for each in (root["transforms"], *root["chains"]))
    for chain in chains or [[]]:
        bound = [*(f"!{d.text}" for d in transforms), *(d.text for d in chain)]
        check(len(bound) <= 8 and len("\n".join(bound)) <= 1024, "C1: more than 8 descriptors, or too long")
        check(not any(d.fragment for d in chain if d.name == "streamxf.encrypt"), "M8: a wrapped key in a descriptor")
    check(not any(d.name.startswith("streamxf.") for d in transforms), "D5")
    encrypting = {any(d.name == "streamxf.encrypt" for d in chain) for chain in chains}
    check(len(chains) <= 256, "index: chains")
    check(len(encrypting) < 2, "M17: only some encrypt")
    keyed = encrypting == {True}
    check(keyed == bool(found.lines and found.lines[0]), "M12: line 1 exactly if the chains encrypt")
    check(("digests" in root) == signed, "M7: digests exactly if signed")
    check(len(root["dtypes"]) <= 256, "index: dtypes")
    for dtype in root["dtypes"]:
        check_dtype(dtype)
    f = Fields(found.parts, "index: parts")
    entries = [*root["files"], *(entry for band in root["items"] for entry in band["parts"])]
    entries += root.get("digests", [])
    total, raw = (sum(entry[side] for entry in entries) for side in ("bytes", "raw"))
    check(raw <= 256 * total + (1 << 23), "index: the sizes of all parts")
    files = read_files(root["files"], f, keyed, folders)
    items = [item for band in root["items"] for item in read_band(band, f, [*map(bool, chains)], signed, increment)]
    digests = read_digests(root["digests"], f) if signed else None
    check(not f.rest(), "index: bytes that belong to no part")
    names = [item["name"] for item in items]
    check(names == sorted(set(names)), "M16: the names of items do not rise")
    parts = {item["name"].decode(): parse_item(item, root, chains[item["chain"]], files) for item in items}
    check_numbers([part for each in parts.values() for part in each if part.chain])
    shapes = {i["name"].decode(): (root["dtypes"][i["dtype"] - 1], i["shape"]) for i in items if i["dtype"]}
    wrapped = parse_wrapped(found.lines[0]) if keyed else None
    return Index(transforms, parts, shapes, wrapped, root.get("run"), digests)


def check_numbers(parts: list[Part]) -> None:
    shared: dict[Any, list[Part]] = {}
    for part in parts:
        shared.setdefault((part.identity.writer, part.identity.number), []).append(part)
    for each in [each for each in shared.values() if len(each) > 1]:
        check({part.identity.kind for part in each} == {VALUE}, "M2: a number twice")
        check(len({(part.file, part.at, part.size) for part in each}) == 1, "M2: a number twice")
        spans = sorted(part.span for part in each)
        check(all(one[1] <= two[0] for one, two in pairwise(spans)), "M2: values overlap")


def read_part(entry: Any, f: Fields, needed: set[int]) -> tuple[int, int, dict[int, tuple[int, bytes]]]:
    """How many files or items a part has, how many chunks, and its columns: widths and bytes, by their ids."""
    size = entry["bytes"]
    check(size <= 1 << 22 and entry["raw"] <= 1 << 22, "index: a part's size")
    packed = f.take(size)
    check(sha256(packed).hexdigest() == entry["sha256"], "index: the digest of a part")
    raw = unzstd(packed, entry["raw"])
    check(len(raw) == entry["raw"], "index: a part's size")
    p = Fields(raw, "M16: a part")
    magic, count, rows, chunks = p.unpack("4s3I")
    check(magic == b"SXP\1" and count < 256, "M16: the head of a part")
    directory, columns = [p.unpack("BBHI") for _ in range(count)], {}
    for number, width, zeros, values in directory:
        check(zeros == 0 and number > max(columns, default=0), "M16: ids of columns do not rise, or zeros")
        columns[number] = width, p.take(width * values)
        check(not any(p.take(-width * values % 8)), "M16: padding")
    check(not p.rest(), "M16: bytes that belong to no column")
    check({number for number in columns if number < 128} == needed, "M16: columns")
    width, offsets = columns.get(10, (1, b""))
    counted = 2 * rows + 4 * chunks + len(offsets) // max(width, 1) + count_marks(columns.get(4, (1, b""))[1])
    check(size >= (counted if 10 in columns else 16 * rows), "index: a part has more than its stored bytes allow")
    return rows, chunks, columns


def integers(column: tuple[int, bytes], count: int) -> list[int]:
    width, data = column
    check(width in (1, 2, 4, 8) and len(data) == width * count, "M16: a column's width or count")
    values = [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data), width)]
    check(max(values, default=0) <= MAX_NUMBER, "M16: a number")
    return values


def fixed(column: tuple[int, bytes], width: int, count: int) -> list[bytes]:
    check(column[0] == width and len(column[1]) == width * count, "M16: a column's width or count")
    return [column[1][width * i : width * i + width] for i in range(count)]


def strings(ends: tuple[int, bytes], texts: tuple[int, bytes], count: int) -> list[bytes]:
    stops = integers(ends, count)
    check(stops == sorted(stops) and texts[0] == 1 and len(texts[1]) == max(stops, default=0), "M16: ends")
    return [texts[1][begin:end] for begin, end in zip([0, *stops], stops, strict=False)]


def read_files(entries: Any, f: Fields, keyed: bool, folders: set[str]) -> list[File]:
    files: list[File] = []
    for entry in entries:
        rows, chunks, columns = read_part(entry, f, {32, 33, 34, 35, *[36] * keyed})
        check(entry["from"] == len(files) and chunks == 0 and rows, "M16: from, or chunks of files")
        sizes, writers = integers(columns[34], rows), fixed(columns[35], 16, rows)
        keys = fixed(columns[36], 40, rows) if keyed else [None] * rows
        with refusing("M16: UTF-8", UnicodeDecodeError):
            paths = [path.decode() for path in strings(columns[32], columns[33], rows)]
        files += map(File, paths, sizes, writers, keys)
        for path in paths:
            check_file_path(path, folders)
    paths = [file.path.encode() for file in files]
    check(paths == sorted(set(paths)), "M16: the paths of files do not rise")
    check(len({(file.writer, file.key) for file in files}) == len({file.writer for file in files}), "M9: two keys")
    return files


def read_digests(entries: Any, f: Fields) -> list[bytes]:
    digests: list[bytes] = []
    for entry in entries:
        rows, chunks, columns = read_part(entry, f, {40})
        check(entry["from"] == len(digests) and chunks == 0 and rows, "M16: from, or chunks of digests")
        digests += fixed(columns[40], 32, rows)
    return digests


def check_file_path(path: str, folders: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    steps = path.split("/")
    if len(steps) == 3 and steps[0] == ".." and steps[1] in folders:  # M20
        steps = steps[2:]
    check(1 <= len(path.encode("utf-8", "replace")) <= 4096, "M4: the length")
    check(not re.search(r"[\x00-\x1f\x7f-\x9f\\%?#\ud800-\udfff]", path), "M4: a character")
    check(not {"", ".", ".."} & set(steps) and ":" not in steps[0], "M4: a part of the path")


def read_band(band: Any, f: Fields, coded: list[bool], signed: bool, increment: bool) -> list[Any]:
    """The items of a band, with all their chunks."""
    items: list[Any] = []
    begins = [entry["from"] for entry in band["parts"]]
    check(begins and begins[0] == 0 and begins == sorted(set(begins)), "index: where the parts of a band begin")
    for begin, end, entry in zip(begins, [*begins[1:], 1 << 53], band["parts"], strict=True):
        needed = {1, 2, *range(5, 17), 18, 19, 20, *[3, 4] * (begin == 0), *[17] * signed}
        needed |= {21, 22} if increment else set()
        rows, count, columns = read_part(entry, f, needed)
        names = strings(columns[1], columns[2], rows)
        more = strings(columns[3], columns[4], rows) if not begin else [b""] * rows
        dtypes, ndims, counts, chains = (integers(columns[number], rows) for number in (5, 6, 8, 9))
        check(max(ndims, default=0) <= 64, "M16: dimensions")
        check(max(chains, default=0) < len(coded), "M16: no such chain")
        numbers = iter(integers(columns[7], sum(ndims)))
        shapes = [tuple(next(numbers) for _ in range(ndim)) for ndim in ndims]
        here = [max(min(n, end) - begin, 0) for n in counts]
        check(sum(here) == count, "M16: the number of chunks")
        dims = sum(map(int.__mul__, here, ndims))
        boxes = [iter(integers(columns[number], dims)) for number in (10, 11)]
        rest = [integers(columns[number], count) for number in (12, 13, 14, 15)]
        boxed = [coded[chain] for chain, n in zip(chains, here, strict=True) for _ in range(n)]
        values = iter(integers(columns[16], sum(boxed)))
        rest.append([next(values) if own else 0 for own in boxed])
        pieces = [0 if own else -(-size // MIB) for own, size in zip(boxed, rest[3], strict=True)]
        crcs = iter(fixed(columns[18], 4, sum(pieces)))
        rest.append([[next(crcs) for _ in range(n)] for n in pieces])
        inside = [own and kind == VALUE for own, kind in zip(boxed, rest[0], strict=True)]
        ends = [iter(integers(columns[number], sum(inside))) for number in (19, 20)]
        rest.append([tuple(map(next, ends)) if is_value else None for is_value in inside])
        rest.append(integers(columns[17], count) if signed else [None] * count)
        beneath = integers(columns[21], count) if increment else [0] * count
        check(max(beneath, default=0) <= 16, "M20: too many beneath")
        lower = iter(integers(columns[22], 3 * sum(beneath)) if increment else ())
        rest.append([[(next(lower), next(lower), next(lower)) for _ in range(n)] for n in beneath])
        chunks = zip(*rest, strict=True)
        made = []
        rows_of = zip(names, more, dtypes, ndims, shapes, counts, chains, here, strict=True)
        for name, text, dtype, ndim, shape, n, chain, own in rows_of:
            item = {"name": name, "dtype": dtype, "shape": shape, "count": n, "chain": chain}
            places = [(*(tuple(next(b) for _ in range(ndim)) for b in boxes), *next(chunks)) for _ in range(own)]
            made.append((item, text, places))
        if not items:
            items = [{**item, "more": text, "chunks": []} for item, text, _ in made]
        same = [{key: item[key] for key in ("name", "dtype", "shape", "count", "chain")} for item in items]
        check(same == [item for item, _, _ in made], "M16: the items of a band's parts")
        for item, (_, _, places) in zip(items, made, strict=True):
            item["chunks"] += places
    check(items and band["items"] == len(items), "M16: the items of a band")
    for item in items:
        with refusing("M16: UTF-8", UnicodeDecodeError):
            item["name"].decode()
        check(1 <= len(item["name"]) <= 4096, "M16: the length of a name")
    ends = [items[0]["name"], items[-1]["name"]]
    check(ends == [band[end].encode() for end in ("first", "last")], "M16: a band's ends")
    return items


def parse_item(item: Any, root: dict[str, Any], chain: list[Any], files: list[File]) -> list[Part]:
    more = parse_json(item["more"], "more") if item["more"] else {}
    tensor, name, shape, parts = bool(item["dtype"]), item["name"].decode(), item["shape"], []
    conform(more, MORE if tensor else {"path?": list}, "more")
    steps = more.get("path", [name])
    check(1 <= len(steps) <= 256, "index: steps of a path")
    check(all(type(step) is str or (type(step) is int and step < 1 << 20) for step in steps), "index: a step")
    check(all(type(value) in (str, bool) for value in more.get("properties", {}).values()), "M1: properties")
    check(item["dtype"] <= len(root["dtypes"]), "M16: no such dtype")
    check(tensor or (not shape and item["count"] == 1), "M16: an object has no dimensions, and one chunk")
    dtype = root["dtypes"][item["dtype"] - 1] if tensor else ""
    for offset, shard, kind, file, at, size, number, crcs, span, first, lower in item["chunks"]:
        check(kind in ((TENSOR, FRAMED) if tensor else (OBJECT, VALUE)), "M16: a kind")
        check(kind not in (TENSOR, VALUE) or not root["transforms"], "M6")
        if kind == VALUE:
            begin, end = span or (0, size)
            check(1 <= end - begin <= MIB and (not span or end <= 1 << 24), "M2: the size of a value")
        check(file < len(files), "M16: no such file")
        check(at + size <= files[file].size, "M2: not within the file")
        raw = kind == TENSOR and not chain
        check(not raw or size == prod(shard) * element_size(dtype), "B1: the size of a raw tensor")
        box = (offset, shard, shape) if tensor else ((), (), ())
        identity = Identity(files[file].writer, number, kind, dtype, *box, "" if kind == VALUE else name)
        check(not lower or (kind == TENSOR and chain), "M20: a difference that cannot be one")
        for place, begin, length in lower:
            check(place < len(files) and begin + length <= files[place].size, "M20: beneath")
        beneath = [(files[place], *where) for place, *where in lower]
        parts.append(Part(at, size, first, crcs, span, files[file], identity, chain, beneath))
    if tensor:
        offsets = [part.identity.offset for part in parts]
        check_chunks(shape, [(part.identity.offset, part.identity.shard) for part in parts], root["rank"] is None)
        check(offsets == sorted(set(offsets)), "M5: offsets do not rise")
    return parts


def check_chunks(shape: tuple[int, ...], chunks: list[Any], whole: bool) -> None:
    for offset, size in [*chunks, ((0,) * len(shape), shape)]:
        check_place(offset, size, shape, "M5")
    check(len({offset for offset, _ in chunks}) == len(chunks), "M5: two chunks have the same offset")
    full = [box for box in chunks if prod(box[1])]
    cut = sum(any(size[axis] != length for _, size in full) for axis, length in enumerate(shape))
    grid = prod(len({(at[axis], size[axis]) for at, size in full}) for axis in range(len(shape))) == len(full)
    check(not whole or grid or len(full) << cut <= 1 << 20, "M5: too many corners")
    for a, b in combinations(full, 2):
        check(any(o >= p + t or p >= o + s for o, s, p, t in zip(*a, *b, strict=True)), "M5: chunks overlap")
    check(not whole or prod(shape) == sum(prod(size) for _, size in full), "M5: an element is in no chunk")


# -- A checkpoint

# `data` is all elements; None if a chunk is framed, and in the metadata of a rank.
Tensor = namedtuple("Tensor", "dtype shape chunks data")
Value = namedtuple("Value", "data value")  # as it is stored, and what that is


def load(folder: Path, reader: Reader, rank: int | None = None) -> dict[str, bytes | Value | Tensor]:
    """Load what `.metadata` names, or what `__<rank>.metadata` does: objects as their bytes."""
    data = (folder / (".metadata" if rank is None else f"__{rank}.metadata")).read_bytes()
    index = read_index(data, rank, reader)
    result: dict[str, bytes | Value | Tensor] = {}
    for name, parts in index.parts.items():
        streams = [read_stream(folder, part, index, reader) for part in parts]
        if name not in index.shapes:
            [stream], [part] = streams, parts
            result[name] = Value(stream, parse_value(stream)) if part.identity.kind == VALUE else stream
            continue
        dtype, shape = index.shapes[name]
        chunks = [(part.identity, stream) for part, stream in zip(parts, streams, strict=True)]
        plain = rank is None and all(identity.kind == TENSOR for identity, _ in chunks)
        known = dtype if (name_of := dtype.partition(":")[0]) not in ELEMENT_SIZE else name_of
        result[name] = Tensor(known, shape, chunks, assemble(shape, element_size(dtype), chunks) if plain else None)
    return result


def read_stream(folder: Path, part: Part, index: Index, reader: Reader) -> bytes:
    """R4 and R5."""
    if not part.chain:
        stream, digests = stored(folder, part, index)
        pieces = [stream[at : at + MIB] for at in range(0, len(stream), MIB)]
        check(index.digests is None or len(digests) >= len(pieces), "M18: no such digest")
        check([*map(crc, pieces)] == part.crcs, "B2: the CRC of a MiB")
        check(not digests or [sha256(piece).digest() for piece in pieces] == digests[: len(pieces)], "M18: a piece")
    else:
        table, decode_block = open_container(folder, part, index, reader)
        stream = b"".join(map(decode_block, range(len(table.ends))))
        if part.identity.kind == VALUE:
            check(part.span[1] <= len(stream), "M2: the stream ends before the value")
            stream = stream[slice(*part.span)]
    return undo(stream, index.transforms)


def stored(folder: Path, part: Part, index: Index) -> tuple[bytes, list[bytes]]:
    """A chunk as it is stored, and the digests from its first on."""
    file = (folder / part.file.path).read_bytes()
    check(len(file) == part.file.size, "M3: the size of a file")
    return file[part.at : part.at + part.size], index.digests[part.first :] if index.digests is not None else []


def open_container(
    folder: Path, part: Part, index: Index, reader: Reader, above: Header | None = None
) -> tuple[Table, Decoder]:
    """A chunk's container, or one beneath the difference in another."""
    stream, digests = stored(folder, part, index)
    header = parse_header(stream)
    same = above is None or (header.hash == above.base and header.block_size == above.block_size)
    check(same, "C17: not what the difference was made from")
    check(header.chain == ["!" + d.text for d in index.transforms] + [d.text for d in part.chain], "M8: the chain")
    check(header.flags & PUBLISHED, "M8: published")
    number = part.identity.number if above is None else header.identity.number
    check(header.identity._replace(name=part.identity.name) == part.identity._replace(number=number), "M8: this item")
    check(bool(header.base) == bool(part.lower), "M20: a difference, or none")
    key = unseal(header, data_key_of(part.file, index, reader))
    table = parse_table(stream, header)
    check(index.digests is None or len(digests) > len(table.ends), "M18: no such digest")
    check(part.identity.kind != VALUE or table.raw_size <= 1 << 24, "V5")
    base = None
    for file, at, size in part.lower[:1]:
        identity = part.identity._replace(writer=file.writer)
        first = (part.first or 0) + 1 + len(table.ends)
        lower = part._replace(at=at, size=size, first=first, file=file, identity=identity, lower=part.lower[1:])
        _, base = open_container(folder, lower, index, reader, header)
    return table, decoder_of(stream, header._replace(codecs=part.chain), table, key, digests, base)


def data_key_of(file: File, index: Index, reader: Reader) -> bytes | None:
    """M9."""
    if file.key is None:
        return None
    data_key = unwrap(index.wrapped, reader.keys)[0]
    if not any(file.key):
        return data_key
    with refusing("M9: the key of a writer", InvalidUnwrap):
        return aes_key_unwrap(hkdf(data_key, b"streamxf/1 keys", 32), file.key)


def assemble(shape: tuple[int, ...], width: int, chunks: list[tuple[Identity, bytes]]) -> bytes:
    data, strides = bytearray(prod(shape) * width), [prod(shape[i + 1 :]) * width for i in range(len(shape))]
    for identity, stream in chunks:
        row = prod(identity.shard[-1:]) * width
        for i, place in enumerate(product(*map(range, identity.shard[:-1]))):
            at = sum((o + p) * stride for o, p, stride in zip(identity.offset, (*place, 0), strides, strict=False))
            data[at : at + row] = stream[i * row : (i + 1) * row]
    return bytes(data)
