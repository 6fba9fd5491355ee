"""Metadata files: DCP's pickle, the manifest and its tag; and what can be wrong with each of them."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from recipes.recipients import HYBRID, OTHER_SIGNER, holding, hybrid_wrap, signature
from recipes.sealing import DEK, KEY, OTHER_KEY, fragment, hkdf, secret, wrapped
from recipes.vector import NO_KEYS, Keys, Vector, digest_of

HELD = Keys((("aeskw", KEY),))
OTHERS = Keys((("aeskw", OTHER_KEY),))
MAGIC = bytes.fromhex("0a1a0d0a4d5853d3")
SAVE_ID = hashlib.sha256(b"save id").hexdigest()[:32]
WRITER = hashlib.sha256(b"writer id").hexdigest()[:32]
DESCRIPTOR = f"streamxf.encrypt/1#{fragment()}"
DATA_FILE = "__0_0.distcp"


def vectors() -> list[Vector]:
    """All of them."""
    headed = [*_trailers(), *_manifests(), *_tags(), *_keys(), *_signed()]
    return [*_right(), *headed, *_pickles(), *_contents(), *_chunks(), *_limits()]


# -- parts -----------------------------------------------------------------------------------------------------------


def content(change: Callable[[Metadata], object] | None = None) -> Metadata:
    """DCP's metadata of a tensor of 4 x 3 in two chunks and of a bytes object, altered by `change`."""
    shape = torch.Size([2, 3])
    places = [torch.Size([0, 0]), torch.Size([2, 0])]
    made = Metadata(
        state_dict_metadata={
            "weight": TensorStorageMetadata(
                properties=TensorProperties(dtype=torch.float32),
                size=torch.Size([4, 3]),
                chunks=[ChunkStorageMetadata(offsets=place, sizes=shape) for place in places],
            ),
            "step": BytesStorageMetadata(),
        },
        planner_data={"weight": ("weight",), "step": ("step",)},
        storage_data={
            MetadataIndex("weight", places[0], 0): _StorageInfo(DATA_FILE, 0, 900, ["streamxf.zstd/1"]),
            MetadataIndex("weight", places[1], 1): _StorageInfo(DATA_FILE, 900, 900, ["streamxf.zstd/1"]),
            MetadataIndex("step"): _StorageInfo(DATA_FILE, 1800, 400, ["streamxf.zstd/1"]),
        },
        storage_meta=StorageMeta(),
    )
    if change is not None:
        change(made)
    return made


def manifest(**changes: Any) -> dict[str, Any]:
    """A manifest for `content`, with some of its keys altered. It is that of an encrypted checkpoint."""
    usual: dict[str, Any] = {
        "files": {DATA_FILE: {"digest": "crc32c:01234567", "size": 2200, "writer": WRITER}},
        "key": DESCRIPTOR,
        "packages": {"streamxf": "0.1.0", "torch": "2.13.0"},
        "rank": None,
        "save_id": SAVE_ID,
        "version": 1,
    }
    return usual | changes


def text_of(made: object) -> bytes:
    """Compact JSON."""
    return json.dumps(made, separators=(",", ":")).encode("ascii")


def tag_of(body: bytes, dek: bytes | None = DEK) -> bytes:
    """The tag under a data key, or the plain digest."""
    if dek is None:
        return hashlib.sha256(body).digest()
    return hmac.digest(hkdf(dek, b"streamxf/1 metadata", 32), body, "sha256")


def assemble(pickled: bytes, text: bytes, dek: bytes | None = DEK, *, length: int | None = None) -> bytes:
    """A metadata file with a tag that is right; `length` is what it says of its manifest."""
    body = pickled + text + struct.pack("<I", len(text) if length is None else length)
    return body + tag_of(body, dek) + MAGIC


PICKLE = pickle.dumps(content(), protocol=4)
TEXT = text_of(manifest())
OPEN_TEXT = text_of(manifest(key=None))
FILE = assemble(PICKLE, TEXT)
OPEN_FILE = assemble(PICKLE, OPEN_TEXT, None)


def _reads(name: str, about: str, file: bytes, pickled: bytes, keys: Keys = NO_KEYS, rank: int | None = None) -> Vector:
    outcome = {"rank": rank, "holds": {"save_id": SAVE_ID, "pickle": digest_of(pickled)}}
    return Vector(name, about, lambda: file, keys, outcome)


def _altered(name: str, about: str, change: Callable[[Metadata], object]) -> Vector:
    """Metadata whose content is at fault, under a tag that is right."""
    pickled = pickle.dumps(content(change), protocol=4)
    return _fails(name, about, assemble(pickled, TEXT), "pickle", pickled=pickled)


def _fails(name: str, about: str, file: bytes, layer: str, keys: Keys = HELD, pickled: bytes | None = None) -> Vector:
    """`pickled` is given where everything up to the pickle's end is right, so that only its content is at fault."""
    outcome: dict[str, Any] = {"rank": None, "fails": layer}
    if pickled is not None:
        outcome["pickle"] = digest_of(pickled)
    return Vector(name, about, lambda: file, keys, outcome)


# -- metadata that is right ------------------------------------------------------------------------------------------


def _right() -> list[Vector]:
    two = manifest(key=f"streamxf.encrypt/1#{fragment([wrapped(OTHER_KEY), wrapped(KEY)])}")
    pretty = json.dumps(manifest(), indent=1).encode("ascii")
    escaped = TEXT.replace(b"__0_0", b"\\u005f_0_0")
    deeper = pickle.dumps(content(_into_folder))
    folder = manifest(files={f"run 7/é/{DATA_FILE}": manifest()["files"][DATA_FILE]})
    return [
        _reads("encrypted", "of an encrypted checkpoint", FILE, PICKLE, HELD),
        _reads("not-encrypted", "of a checkpoint that is not encrypted", OPEN_FILE, PICKLE),
        _reads("two-recipients", "the second of two recipients reads", assemble(PICKLE, text_of(two)), PICKLE, HELD),
        _reads("of-rank-3", "metadata of one rank", assemble(PICKLE, text_of(manifest(rank=3))), PICKLE, HELD, 3),
        _reads("spaced", "JSON with spaces and newlines", assemble(PICKLE, pretty), PICKLE, HELD),
        _reads("escaped", "JSON with an escape that it does not need", assemble(PICKLE, escaped), PICKLE, HELD),
        _reads("in-folders", "a data file in a folder of a folder", assemble(deeper, text_of(folder)), deeper, HELD),
        *(
            _reads(
                f"pickle-protocol-{protocol}",
                f"a pickle of protocol {protocol}",
                assemble(pickle.dumps(content(), protocol=protocol), TEXT),
                pickle.dumps(content(), protocol=protocol),
                HELD,
            )
            for protocol in (2, 3, 5)
        ),
    ]


def _into_folder(made: Metadata) -> None:
    for place in made.storage_data.values():
        place.relative_path = f"run 7/é/{DATA_FILE}"


# -- trailer and manifest --------------------------------------------------------------------------------------------


def _trailers() -> list[Vector]:
    size = len(TEXT)
    body = len(PICKLE)
    cases = [
        ("trailer-length-beyond-file", "manifest_len is larger than the file", 2**20, "trailer"),
        ("trailer-length-above-limit", "manifest_len is 64 MiB and a byte", 2**26 + 1, "trailer"),
        ("trailer-length-2-32", "manifest_len is 2^32 - 1", 2**32 - 1, "trailer"),
        ("trailer-length-all", "manifest_len leaves the pickle a byte too few", body + size + 1, "trailer"),
        ("trailer-length-0", "manifest_len is 0", 0, "manifest"),
        ("trailer-length-one-less", "manifest_len is one less", size - 1, "manifest"),
        ("trailer-length-one-more", "manifest_len is one more", size + 1, "manifest"),
    ]
    cut = [
        ("trailer-magic", "another last byte", FILE[:-1] + b"\xd2"),
        ("trailer-cut", "the last byte is missing", FILE[:-1]),
        ("trailer-missing", "the pickle alone, as torch writes it", PICKLE),
        ("trailer-continued", "a byte follows", FILE + b"\0"),
    ]
    return [
        *(_fails(name, about, assemble(PICKLE, TEXT, length=length), layer) for name, about, length, layer in cases),
        *(_fails(name, f"{about}; the reader has a key", file, "policy") for name, about, file in cut),
        _fails(
            "trailer-cut-no-key", "the last byte is missing; the reader has no key", OPEN_FILE[:-1], "pickle", NO_KEYS
        ),
        _fails(
            "trailer-continued-no-key", "a byte follows; the reader has no key", OPEN_FILE + b"\0", "pickle", NO_KEYS
        ),
        _fails("trailer-nothing", "an empty file", b"", "trailer"),
        _fails("trailer-alone", "a trailer, and no pickle", assemble(b"", TEXT), "pickle"),
    ]


def _manifests() -> list[Vector]:
    facts = manifest()["files"][DATA_FILE]

    def file(path: str = DATA_FILE, **changes: Any) -> bytes:
        return text_of(manifest(files={path: facts | changes}))

    without = {name: value for name, value in manifest().items() if name != "save_id"}
    entry = json.dumps(facts)
    twice = TEXT.replace(b'"files":{', f'"files":{{"{DATA_FILE}":{entry},'.encode())
    cases = [
        ("empty-object", "an object without keys", b"{}"),
        ("array", "an array", b"[" + TEXT + b"]"),
        ("null", "null", b"null"),
        ("not-json", "no JSON", b"version: 1"),
        ("cut", "the last brace is missing", TEXT[:-1]),
        ("twice", "two objects", TEXT + TEXT),
        ("trailing-comma", "a comma before the last brace", TEXT[:-1] + b",}"),
        ("comment", "a comment", TEXT + b"//"),
        ("single-quotes", "quotes that are not JSON's", TEXT.replace(b'"', b"'")),
        ("byte-order-mark", "a byte order mark", b"\xef\xbb\xbf" + TEXT),
        ("utf-8", "a letter that is not ASCII", TEXT.replace(b"__0_0", "é".encode())),
        ("utf-16", "another encoding", json.dumps(manifest()).encode("utf-16")),
        ("nan", "a number that is none", TEXT.replace(b"2200", b"NaN")),
        ("infinity", "a number that is none", TEXT.replace(b"2200", b"Infinity")),
        ("deep", "5,000 arrays in each other", b"[" * 5000 + b"]" * 5000),
        ("many-objects", "300 objects without any key", TEXT[:-1] + b',"x":[' + b",".join([b"{}"] * 300) + b"]}"),
        (
            "many-arrays",
            "300 arrays in each other, in an unknown key",
            TEXT[:-1] + b',"x":' + b"[" * 300 + b"]" * 300 + b"}",
        ),
        ("many-numbers", "2,000 numbers in an unknown key", TEXT[:-1] + b',"x":[' + b",".join([b"1"] * 2000) + b"]}"),
        ("key-twice", "a key twice, with the same value", TEXT[:-1] + b',"version":1}'),
        ("save-id-twice", "two save_ids", TEXT[:-1] + f',"save_id":"{WRITER}"}}'.encode()),
        ("file-twice", "a file twice", twice),
        ("size-twice", "two sizes of a file", TEXT.replace(b'"size":2200', b'"size":2200,"size":1')),
        ("key-unknown", "a key that nobody knows", text_of(manifest(comment="none"))),
        ("key-missing", "no save_id", text_of(without)),
        ("key-capital", "a key in capitals", TEXT.replace(b'"version"', b'"VERSION"')),
        ("version-0", "version 0", text_of(manifest(version=0))),
        ("version-2", "version 2", text_of(manifest(version=2))),
        ("version-text", "a version that is text", text_of(manifest(version="1"))),
        ("version-true", "a version that is true", text_of(manifest(version=True))),
        ("version-float", "a version that is 1.0", text_of(manifest(version=1.0))),
        ("save-id-short", "a save_id of 31 digits", text_of(manifest(save_id=SAVE_ID[:-1]))),
        ("save-id-capitals", "a save_id in capitals", text_of(manifest(save_id=SAVE_ID.upper()))),
        ("save-id-newline", "a save_id and a newline", text_of(manifest(save_id=SAVE_ID + "\n"))),
        ("save-id-number", "a save_id that is a number", text_of(manifest(save_id=10**31))),
        ("rank-negative", "rank -1", text_of(manifest(rank=-1))),
        ("rank-text", "a rank that is text", text_of(manifest(rank="0"))),
        ("rank-true", "a rank that is true", text_of(manifest(rank=True))),
        ("rank-float", "a rank that is 0.0", text_of(manifest(rank=0.0))),
        ("rank-0", "the metadata of rank 0 in the place of everybody's", text_of(manifest(rank=0))),
        ("key-a-number", "a key that is no text", text_of(manifest(key=7))),
        ("key-of-another-codec", "a key that is another codec's descriptor", text_of(manifest(key="streamxf.zstd/1"))),
        ("key-of-version-2", "a later version of encryption", text_of(manifest(key=DESCRIPTOR.replace("/1#", "/2#")))),
        ("key-no-descriptor", "a key that is no descriptor", text_of(manifest(key="encrypt"))),
        ("packages-array", "packages in an array", text_of(manifest(packages=["streamxf", "torch"]))),
        ("packages-number", "a version that is a number", text_of(manifest(packages={"streamxf": 1, "torch": "2"}))),
        ("files-array", "files in an array", text_of(manifest(files=[DATA_FILE]))),
        ("files-null", "no files", text_of(manifest(files=None))),
        ("file-a-number", "a file that is described by a number", text_of(manifest(files={DATA_FILE: 2200}))),
        ("file-key-unknown", "a key that no file has", file(mode=420)),
        (
            "file-key-missing",
            "a file without digest",
            text_of(manifest(files={DATA_FILE: {"size": 1, "writer": WRITER}})),
        ),
        ("size-negative", "a size of -1", file(size=-1)),
        ("size-float", "a size of 2200.0", file(size=2200.0)),
        ("size-true", "a size of true", file(size=True)),
        ("size-text", "a size that is text", file(size="2200")),
        ("size-exponent", "a size with an exponent", TEXT.replace(b"2200", b"22e2")),
        ("writer-short", "a writer id of 31 digits", file(writer=WRITER[:-1])),
        ("writer-null", "no writer id", file(writer=None)),
        ("digest-sha256", "another kind of digest", file(digest="sha256:" + "0" * 64)),
        ("digest-of-7", "a digest of 7 digits", file(digest="crc32c:0123456")),
        ("digest-capitals", "a digest in capitals", file(digest="crc32c:0123ABCD")),
        ("path-up", "a path out of the checkpoint", file("../" + DATA_FILE)),
        ("path-up-inside", "a path that climbs out on its way", file("a/../../" + DATA_FILE)),
        ("path-absolute", "a path from the root", file("/etc/passwd")),
        ("path-empty", "an empty path", file("")),
        ("path-dot", "a path with a part .", file("./" + DATA_FILE)),
        ("path-double-slash", "a path with an empty part", file("a//" + DATA_FILE)),
        ("path-slash-at-end", "a path that ends in a slash", file("a/")),
        ("path-backslash", "a path of Windows", file("a\\" + DATA_FILE)),
        ("path-drive", "a path with a drive", file("C:" + DATA_FILE)),
        ("path-url", "a URL", file("s3://bucket/" + DATA_FILE)),
        ("path-nul", "a path with a NUL", file("a\0b")),
        ("path-percent", "a path that leads out once a URL is decoded", file("%2e%2e/" + DATA_FILE)),
        ("path-question-mark", "a path that ends early in a URL", file(DATA_FILE + "?a")),
        ("path-number-sign", "a path that ends early in a URL", file(DATA_FILE + "#a")),
        ("path-control", "a path with a newline", file("a\nb")),
        ("path-delete", "a path with DEL", file("a\x7fb")),
    ]
    return [_fails(f"manifest-{name}", about, assemble(PICKLE, text), "manifest") for name, about, text in cases]


# -- tag and key -----------------------------------------------------------------------------------------------------


def _tags() -> list[Vector]:
    at = len(FILE) - 40
    flipped = FILE[:at] + bytes([FILE[at] ^ 1]) + FILE[at + 1 :]
    open_at = len(OPEN_FILE) - 9
    open_flipped = OPEN_FILE[:open_at] + bytes([OPEN_FILE[open_at] ^ 0x80]) + OPEN_FILE[open_at + 1 :]
    renamed = PICKLE.replace(b"weight", b"wright")
    kept = FILE[len(FILE) - 40 : -8]
    moved = text_of(manifest(save_id=WRITER))

    def old_tag(pickled: bytes, text: bytes, tag: bytes = kept) -> bytes:
        return pickled + text + struct.pack("<I", len(text)) + tag + MAGIC

    open_tag = OPEN_FILE[len(OPEN_FILE) - 40 : -8]
    cases = [
        ("mac-bit", "a bit of the tag", flipped, "mac"),
        ("mac-zeros", "a tag of zeros", old_tag(PICKLE, TEXT, bytes(32)), "mac"),
        ("mac-of-the-pickle-alone", "a tag over less", old_tag(PICKLE, TEXT, tag_of(PICKLE)), "mac"),
        ("mac-plain-digest", "SHA-256 without a key in its place", assemble(PICKLE, TEXT, None), "mac"),
        ("mac-of-another-data-key", "a tag under another data key", assemble(PICKLE, TEXT, secret("another")), "mac"),
        ("mac-other-pickle", "a letter of the pickle is another", old_tag(renamed, TEXT), "mac"),
        ("mac-other-manifest", "the manifest of another save", old_tag(PICKLE, moved), "mac"),
        ("mac-other-file-size", "another size in the manifest", old_tag(PICKLE, TEXT.replace(b"2200", b"2201")), "mac"),
        ("mac-hostile-pickle", "a pickle that runs a program, not tagged", old_tag(_calls(os.system), TEXT), "mac"),
    ]
    return [
        *(_fails(name, about, file, layer) for name, about, file, layer in cases),
        _fails("digest-bit", "the last bit of the digest", open_flipped, "digest", NO_KEYS),
        _fails("digest-other-pickle", "another pickle", old_tag(renamed, OPEN_TEXT, open_tag), "digest", NO_KEYS),
        _fails("digest-under-a-key", "a MAC in its place", assemble(PICKLE, OPEN_TEXT), "digest", NO_KEYS),
    ]


def _keys() -> list[Vector]:
    def of(key: str) -> bytes:
        return assemble(PICKLE, text_of(manifest(key=key)))

    short = DESCRIPTOR.partition("&")[0]
    other = fragment([wrapped(KEY, secret("another data key"))])
    return [
        _fails("key-none", "no key", FILE, "key-missing", NO_KEYS),
        _fails("key-another", "a key that it is not wrapped for", FILE, "key-missing", OTHERS),
        _fails(
            "key-wrap-of-another-dek", "the wrap of another data key", of(f"streamxf.encrypt/1#{other}"), "key-wrong"
        ),
        _fails("key-no-wrap", "no wrapped key", of(short), "fragment"),
        _fails("key-stray", "a key that the fragment does not have", of(DESCRIPTOR + "&x=1"), "fragment"),
        _fails("key-taken-away", "the key is null and the tag a digest; the reader has a key", OPEN_FILE, "policy"),
    ]


def _signed() -> list[Vector]:
    def of(text: str) -> bytes:
        return assemble(PICKLE, text_of(manifest(key=f"streamxf.encrypt/1#{text}")))

    by_nobody = fragment([hybrid_wrap()])
    reader = holding(HYBRID)
    renamed = signature(message=b"something else")
    return [
        _reads("signed", "for a private key, and signed", of(by_nobody + signature()), PICKLE, reader),
        _fails("unsigned", "for a private key, not signed", of(by_nobody), "policy", reader),
        _fails("signed-by-stranger", "signed by a stranger", of(by_nobody + signature(OTHER_SIGNER)), "policy", reader),
        _fails("signature-wrong", "a signature of something else", of(by_nobody + renamed), "signature", reader),
        _fails("signature-twice", "two signatures", of(by_nobody + signature() + signature()), "fragment", reader),
    ]


# -- pickles ---------------------------------------------------------------------------------------------------------


class _Call:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _calls(function: Any, *arguments: Any) -> bytes:
    return pickle.dumps(_Call(function, *(arguments or ("exit 1",))), protocol=4)


def _sets(name: str) -> bytes:
    """A pickle that sets an attribute of the class `Metadata`."""
    module = b"torch.distributed.checkpoint.metadata"
    return (
        b"\x80\x04\x8c" + bytes([len(module)]) + module + b"\x8c\x08Metadata\x93"
        b"N}\x8c" + bytes([len(name)]) + name.encode() + b"Ns\x86b."
    )


def _pickles() -> list[Vector]:
    """Pickles under tags that are right, which is what somebody with the key, or without any in the way, can make."""
    complete = [
        ("os-system", "a call of os.system", _calls(os.system)),
        ("eval", "a call of eval", _calls(eval, "1")),
        ("exec", "a call of exec", _calls(exec, "pass")),
        ("open", "a call of open", _calls(open, "/tmp/x", "w")),
        ("import", "a call of __import__", _calls(__import__, "os")),
        ("getattr", "a call of getattr", _calls(getattr, Path("x"), "touch")),
        ("torch-load", "a call of torch.load", _calls(torch.load, "x")),
        ("global-in-text", "os.system by the old opcode", b"cos\nsystem\n(S'exit 1'\ntR."),
        ("inst", "os.system by INST", b"(S'exit 1'\nios\nsystem\n."),
        ("dotted-name", "a method of an allowed class", b"\x80\x04\x8c\x05torch\x8c\x0dSize.__init__\x93."),
        ("persistent-id", "a reference to something outside", b"\x80\x04N\x51."),
        ("extension", "a name by its number", b"\x80\x02\x82\x01."),
        ("class-attribute", "an attribute of a class is set", _sets("__init__")),
        ("none", "None", b"\x80\x04N."),
        ("dict", "a dictionary", pickle.dumps({"weight": 1}, protocol=4)),
        ("ordered-dict", "an allowed class that is not Metadata", pickle.dumps(OrderedDict(), protocol=4)),
        ("list-of-metadata", "a list with the metadata in it", pickle.dumps([content()], protocol=4)),
    ]
    framing = [
        ("byte-after", "a byte between pickle and manifest", PICKLE + b"\0"),
        ("twice", "two pickles", PICKLE + PICKLE),
        ("cut", "the last byte is missing", PICKLE[:-1]),
        ("cut-in-half", "half a pickle", PICKLE[: len(PICKLE) // 2]),
        ("noise", "no pickle", hashlib.sha256(b"no pickle").digest()),
        ("length-2-63", "a text of 2^63 bytes", b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b"x."),
    ]
    return [
        *(
            _fails(f"pickle-{name}", about, assemble(pickled, TEXT), "pickle", pickled=pickled)
            for name, about, pickled in complete
        ),
        *(_fails(f"pickle-{name}", about, assemble(pickled, TEXT), "pickle") for name, about, pickled in framing),
    ]


def _contents() -> list[Vector]:
    """Metadata that contradicts itself or leads out of the checkpoint, under a tag that is right."""

    def place(**fields: Any) -> Callable[[Metadata], None]:
        def change(made: Metadata) -> None:
            for name, value in fields.items():
                setattr(made.storage_data[MetadataIndex("step")], name, value)

        return change

    cases: list[tuple[str, str, Callable[[Metadata], object]]] = [
        ("path-up", "an item outside of the checkpoint", place(relative_path="../" + DATA_FILE)),
        ("path-absolute", "an item at a path from the root", place(relative_path="/etc/passwd")),
        ("path-unlisted", "an item in a file that the manifest does not list", place(relative_path="other.distcp")),
        ("path-a-number", "an item in a file whose name is a number", place(relative_path=7)),
        ("offset-negative", "an item before its file", place(offset=-1)),
        ("length-negative", "an item of fewer than no bytes", place(length=-1)),
        ("offset-float", "a place that is no whole number", place(offset=1800.0)),
        ("places-in-a-list", "places that are no table", lambda made: setattr(made, "storage_data", [1])),
        ("place-no-place", "a number in the place of a place", lambda made: made.storage_data.update(a=1)),
        ("no-places", "no places at all", lambda made: vars(made).pop("storage_data")),
    ]
    return [_altered(f"content-{name}", about, change) for name, about, change in cases]


def _chunk(offsets: list[int], sizes: list[int]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))


def _cut(*chunks: ChunkStorageMetadata, size: list[int] | None = None) -> Callable[[Metadata], None]:
    """Give the tensor these chunks, each with a place, and perhaps another size."""

    def change(made: Metadata) -> None:
        tensor = made.state_dict_metadata["weight"]
        tensor.chunks = list(chunks)
        tensor.size = tensor.size if size is None else torch.Size(size)
        made.storage_data = {index: place for index, place in made.storage_data.items() if index.fqn != "weight"}
        for number, chunk in enumerate(chunks):
            index = MetadataIndex("weight", chunk.offsets, number)
            made.storage_data[index] = _StorageInfo(DATA_FILE, 100 * number, 100, ["streamxf.zstd/1"])

    return change


def _without_place(name: str, offset: list[int] | None) -> Callable[[Metadata], object]:
    index = MetadataIndex(name, None if offset is None else torch.Size(offset))
    return lambda made: made.storage_data.pop(index)


def _chunks() -> list[Vector]:
    """Chunks that do not tile their tensor of 4 x 3, and some that do."""
    one, two = _chunk([0, 0], [2, 3]), _chunk([2, 0], [2, 3])
    cases: list[tuple[str, str, Callable[[Metadata], object]]] = [
        ("missing", "a chunk is missing", _cut(one)),
        ("none", "no chunk at all", _cut()),
        ("overlap", "two chunks share a row, and the last row is nobody's", _cut(one, _chunk([1, 0], [2, 3]))),
        ("overlap-of-right-size", "two chunks share a row", _cut(one, _chunk([1, 0], [3, 3]))),
        ("twice", "a chunk stands for two", _cut(one, one)),
        ("outside", "a chunk reaches over the end", _cut(one, _chunk([3, 0], [2, 3]))),
        ("beyond", "a chunk lies beyond the end", _cut(one, two, _chunk([4, 0], [2, 3]))),
        ("gap-in-columns", "a column is missing in two rows", _cut(one, _chunk([2, 0], [2, 2]))),
        ("other-dimensions", "a chunk of one dimension", _cut(one, _chunk([2], [6]))),
        ("negative-size", "a chunk of fewer than no rows", _cut(one, two, _chunk([4, 0], [-1, 3]))),
        ("negative-offset", "a chunk that begins before its tensor", _cut(_chunk([-2, 0], [4, 3]), two)),
        ("without-place", "a chunk that lies nowhere", _without_place("weight", [2, 0])),
        ("bytes-without-place", "an object that lies nowhere", _without_place("step", None)),
        ("wraps", "sizes whose product is 2^64", _cut(_chunk([0, 0], [2**32, 2**32]), size=[2**32, 2**32])),
        ("size-2-63", "a tensor of 2^63 elements", _cut(_chunk([0, 0], [2**62, 2]), size=[2**62, 2])),
    ]
    right: list[tuple[str, str, Callable[[Metadata], object]]] = [
        ("scalar", "a tensor of no dimension", _cut(_chunk([], []), size=[])),
        ("empty-tensor", "a tensor without elements", _cut(_chunk([0, 0], [0, 3]), size=[0, 3])),
        ("empty-chunk", "a chunk without elements", _cut(one, two, _chunk([4, 0], [0, 3]))),
        ("quarters", "chunks in two dimensions", _cut(*_quarters())),
        ("wheel", "five chunks that no cut from side to side parts", _cut(*_wheel(), size=[3, 3])),
    ]
    made = [(name, about, pickle.dumps(content(change), protocol=4)) for name, about, change in right]
    part = pickle.dumps(content(_cut(two)), protocol=4)
    of_rank = assemble(part, text_of(manifest(rank=3)))
    return [
        *(_altered(f"chunk-{name}", about, change) for name, about, change in cases),
        *(_reads(f"chunks-{name}", about, assemble(pickled, TEXT), pickled, HELD) for name, about, pickled in made),
        _reads("chunks-of-rank-3", "a rank has only its own", of_rank, part, HELD, 3),
    ]


def _quarters() -> list[ChunkStorageMetadata]:
    return [_chunk([row, column], [2, 2 - column // 2]) for row in (0, 2) for column in (0, 2)]


def _wheel() -> list[ChunkStorageMetadata]:
    places = [([0, 0], [1, 2]), ([0, 2], [2, 1]), ([2, 1], [1, 2]), ([1, 0], [2, 1]), ([1, 1], [1, 1])]
    return [_chunk(*place) for place in places]


def _limits() -> list[Vector]:
    """What the page limits, and what has another type than DCP gives it."""

    def of_weight(**fields: Any) -> Callable[[Metadata], None]:
        return lambda made: vars(made.state_dict_metadata["weight"]).update(fields)

    def of_all(**fields: Any) -> Callable[[Metadata], None]:
        return lambda made: vars(made).update(fields)

    def of_step(**fields: Any) -> Callable[[Metadata], None]:
        return lambda made: vars(made.storage_data[MetadataIndex("step")]).update(fields)

    deep: Any = "the bottom"
    for _ in range(40):
        deep = [deep]
    cases: list[tuple[str, str, Callable[[Metadata], object]]] = [
        ("name-a-number", "an item whose name is a number", of_all(state_dict_metadata={7: BytesStorageMetadata()})),
        ("item-a-text", "an item that is described by a text", of_all(state_dict_metadata={"weight": "tensor"})),
        ("items-a-list", "items in a list", of_all(state_dict_metadata=[BytesStorageMetadata()])),
        ("properties-a-text", "properties that are a text", of_weight(properties="float32")),
        ("size-a-list", "a size that is a list", of_weight(size=[4, 3])),
        ("chunks-a-table", "chunks in a table", of_weight(chunks={})),
        ("chunk-a-tuple", "a chunk that is a tuple", of_weight(chunks=[((0, 0), (4, 3))])),
        ("descriptors-a-text", "descriptors that are one text", of_step(transform_descriptors="streamxf.zstd/1")),
        ("descriptors-17", "17 descriptors", of_step(transform_descriptors=["streamxf.checksum/1"] * 17)),
        ("descriptor-a-number", "a descriptor that is a number", of_step(transform_descriptors=[1])),
        ("offset-2-63", "a place at 2^63", of_step(offset=2**63)),
        ("attribute-private", "an unknown attribute with an underscore", of_all(_hidden=1)),
        ("attribute-special", "an attribute that a class has", of_all(__reduce__=1)),
        ("attribute-no-data", "an unknown attribute that is no plain data", of_all(note=StorageMeta())),
        ("nesting-40", "40 lists in each other", of_all(note=deep)),
    ]
    known = pickle.dumps(content(of_all(note={"written by": ["a later torch", 1.5, None]})), protocol=4)
    dag = b"\x80\x04)" + b"".join(b"\x94h" + bytes([number]) + b"\x86" for number in range(60))
    table = b"\x80\x04}" + dag[2:] + b"Ns."
    raw = [
        ("memo-skips", "the first object is memorised as the sixth", b"\x80\x04Nq\x05."),
        ("memo-2-31", "an object is memorised as number 2^31 - 1", b"\x80\x04Nr\xff\xff\xff\x7f."),
        ("memo-unknown", "an object that nobody memorised", b"\x80\x04h\x05."),
        ("tuples-of-tuples", "a key that has 2^60 parts, by reference", table),
        ("lists", "30,000 empty lists", b"\x80\x04(" + b"]" * 30_000 + b"t."),
        ("number-of-2040-bits", "a number of 255 bytes", b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b"."),
        ("frame-too-long", "a frame that ends beyond the pickle", b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"N."),
        ("protocol-0", "the metadata as text", pickle.dumps(content(), protocol=0)),
        ("protocol-1", "the metadata by protocol 1", pickle.dumps(content(), protocol=1)),
        ("protocol-6", "a protocol that does not exist", b"\x80\x06" + PICKLE[2:]),
        ("frozenset", "a set that does not change", b"\x80\x04(\x91."),
        ("bytearray", "bytes that change", b"\x80\x05\x96" + struct.pack("<Q", 1) + b"x."),
        ("stack-underflow", "a tuple of what is not there", b"\x80\x04\x87."),
        ("nothing-left", "STOP, and nothing on the stack", b"\x80\x04."),
        ("two-left", "STOP, and two on the stack", b"\x80\x04NN."),
    ]
    return [
        *(_altered(f"limit-{name}", about, change) for name, about, change in cases),
        *(_fails(f"machine-{name}", about, assemble(data, TEXT), "pickle", pickled=data) for name, about, data in raw),
        _reads("attribute-unknown", "an attribute that a later torch may add", assemble(known, TEXT), known, HELD),
    ]
