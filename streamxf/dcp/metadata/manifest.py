"""The trailer of ``.metadata``: a manifest of the checkpoint's files and a tag over everything; docs/format.md,
"Metadata".

It stands behind DCP's pickle, so one rename publishes both, and readers that know nothing of it stop before it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from streamxf.collector import collector_paused
from streamxf.container.limits import METADATA_MAGIC
from streamxf.dcp.metadata.limits import (
    MAX_LOOSE_MANIFEST,
    MAX_MANIFEST,
    MAX_MANIFEST_END,
    MAX_PACKAGE_TEXT,
    MAX_PACKAGES,
    MAX_PATH,
)
from streamxf.dcp.metadata.save_ids import is_id
from streamxf.errors import AuthenticationError, MetadataError
from streamxf.keys.datakey import DataKey

MANIFEST_VERSION = 1
TAG_BYTES = 32
_END_BYTES = 4 + TAG_BYTES + len(METADATA_MAGIC)

_ALWAYS_NAMED = {"streamxf", "torch"}  # among the packages

# behind the files of a manifest as `Manifest.pack` lays it out; texts in it have no quotes, or escaped ones
_BEFORE_KEY = b'},"key":'
_KEY = re.compile(rb'\},"key":(?P<key>null|"[^"\\]*+"),"packages":\{')
# which no writer puts into a path: `%`, `?` and `#` mean something else in a URL, so `%2e%2e/` leads out over HTTP
_STRANGE = re.compile(r"[\x00-\x1f\x7f-\x9f\\%?#]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGEST = re.compile(r"crc32c:[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True)
class FileFacts:
    """What the manifest says of one file.

    Attributes
    ----------
    size : int
        Bytes.
    writer : str
        Id of the process and save that wrote it, 32 hexadecimal digits.
    digest : str
        Over the whole file, ``crc32c:`` and 8 hexadecimal digits.
    """

    size: int
    writer: str
    digest: str


@dataclass(frozen=True)
class Manifest:
    """What was published.

    Attributes
    ----------
    save_id : str
        Random for each save, 32 hexadecimal digits.
    rank : int or None
        Whose rank-local metadata it stands in; None in global metadata.
    key : str or None
        The Encrypt descriptor, with its wrapped keys, of the process that published.
    packages : dict of str to str
        Package versions that wrote the checkpoint.
    files : dict of str to FileFacts
        By path relative to the checkpoint.
    """

    save_id: str
    rank: int | None
    key: str | None
    packages: dict[str, str]
    files: dict[str, FileFacts]

    @collector_paused()
    def pack(self) -> bytes:
        """The manifest as JSON."""
        files = {
            path: {"size": facts.size, "writer": facts.writer, "digest": facts.digest}
            for path, facts in self.files.items()
        }
        content = {
            "version": MANIFEST_VERSION,
            "save_id": self.save_id,
            "rank": self.rank,
            "key": self.key,
            "packages": self.packages,
            "files": files,
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")

    @classmethod
    @collector_paused()
    def parse(cls, data: bytes) -> Manifest:
        """Read the manifest's JSON.

        Raises
        ------
        MetadataError
            If it is anything but a manifest.
        """
        _check_density(data)
        try:
            content = json.loads(data.decode("ascii"), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise MetadataError(f"the manifest is not JSON: {error}") from None
        _check_keys(content, {"version", "save_id", "rank", "key", "packages", "files"}, "the manifest")
        if type(content["version"]) is not int or content["version"] != MANIFEST_VERSION:
            raise MetadataError(
                f"the manifest has version {content['version']!r}; this streamxf reads version {MANIFEST_VERSION}"
            )
        _check(is_id(content["save_id"]), "save_id")
        rank = content["rank"]
        _check(rank is None or (type(rank) is int and 0 <= rank < 2**31), "rank")
        _check(content["key"] is None or isinstance(content["key"], str), "key")
        _check_packages(content["packages"])
        _check(isinstance(content["files"], dict), "files")
        files = {check_path(path): _parse_facts(path, facts) for path, facts in content["files"].items()}
        return cls(content["save_id"], rank, content["key"], content["packages"], files)


@dataclass(frozen=True)
class Parts:
    """A metadata file taken apart, nothing of it believed yet.

    Attributes
    ----------
    pickled : memoryview
        DCP's pickle.
    has_manifest : bool
        Whether there is a trailer. Else it is a stock checkpoint, or a damaged one.
    """

    pickled: memoryview
    has_manifest: bool
    _text: memoryview
    _tagged: memoryview
    _tag: bytes

    @cached_property
    def manifest(self) -> Manifest | None:
        """None where there is no trailer. To parse a large one takes much more than its bytes: where there is a key,
        check the tag first.

        Raises
        ------
        MetadataError
            If it is anything but a manifest.
        """
        return Manifest.parse(bytes(self._text)) if self.has_manifest else None

    @cached_property
    def key(self) -> str | None:
        """What the manifest gives as its key, found without parsing its files if these are many. It counts only if the
        manifest, once the tag was found right, says the same.

        Raises
        ------
        MetadataError
            If it is not found.
        """
        if not self.has_manifest:
            return None
        if len(self._text) <= MAX_LOOSE_MANIFEST:
            manifest = self.manifest
            return manifest.key if manifest is not None else None
        end = bytes(self._text[-MAX_MANIFEST_END:])
        found = _KEY.match(end, end.rfind(_BEFORE_KEY))
        if found is None:
            raise MetadataError(
                f"the manifest has more than {MAX_LOOSE_MANIFEST} bytes, and is not laid out as the format says: the "
                "file is damaged, or another writer made it"
            )
        return None if found["key"] == b"null" else found["key"].decode("ascii")[1:-1]

    def checked(self, data_key: DataKey | None) -> Manifest:
        """The manifest, once the tag was found right.

        Raises
        ------
        AuthenticationError, MetadataError
            As `check_tag`; also if there is none, or it has another key than the one that was found before.
        """
        self.check_tag(data_key)
        manifest = self.manifest
        if manifest is None or manifest.key != self.key:
            raise MetadataError("the manifest's 'key' is not what the format says")
        return manifest

    def check_tag(self, data_key: DataKey | None) -> None:
        """Compare the tag.

        Raises
        ------
        AuthenticationError
            If it does not match under `data_key`.
        MetadataError
            If it does not match as a plain digest.
        """
        if hmac.compare_digest(_tag(self._tagged, data_key), self._tag):
            return
        if data_key is None:
            raise MetadataError("the digest of the metadata does not match: the file is damaged")
        raise AuthenticationError("the MAC of the metadata does not match: the file was altered or damaged")


def append_trailer(pickled: bytes, manifest: Manifest, data_key: DataKey | None) -> bytes:
    """The whole metadata file: pickle, manifest, tag."""
    text = manifest.pack()
    if len(text) > MAX_MANIFEST:
        raise MetadataError(
            f"the manifest would have {len(text)} bytes, {MAX_MANIFEST} are allowed: too many files; save fewer, "
            "larger ones"
        )
    _check_density(text)
    body = pickled + text + len(text).to_bytes(4, "little")
    return body + _tag(memoryview(body), data_key) + METADATA_MAGIC


def split(data: bytes) -> Parts:
    """Take a metadata file apart.

    Raises
    ------
    MetadataError
        If it ends in a trailer that cannot be one. Its manifest is not parsed yet.
    """
    view = memoryview(data)
    if len(view) < _END_BYTES or view[-len(METADATA_MAGIC) :] != METADATA_MAGIC:
        return Parts(view, False, view[:0], view[:0], b"")
    tagged = view[: len(view) - TAG_BYTES - len(METADATA_MAGIC)]
    size = int.from_bytes(tagged[-4:], "little")
    if size > MAX_MANIFEST or size > len(tagged) - 4:
        raise MetadataError(f"the metadata's trailer says its manifest has {size} bytes: the file is damaged")
    start = len(tagged) - 4 - size
    tag = bytes(view[len(tagged) : len(tagged) + TAG_BYTES])
    return Parts(view[:start], True, tagged[start:-4], tagged, tag)


def check_path(path: object) -> str:
    """Return `path` if it stays inside the checkpoint.

    Raises
    ------
    MetadataError
        If it is absolute, climbs out, or is no path at all.
    """
    if not isinstance(path, str) or len(path) > MAX_PATH:  # and not shown: its repr may take for ever
        raise MetadataError("the metadata names a file outside of the checkpoint: its path is no text, or too long")
    if _SURROGATE.search(path):
        raise MetadataError(f"the metadata names a file by what is not valid Unicode: {path!r:.120}")
    parts = path.split("/")
    if _STRANGE.search(path) or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        raise MetadataError(f"the metadata names a file outside of the checkpoint: {path!r:.120}")
    return path


def _tag(tagged: memoryview, data_key: DataKey | None) -> bytes:
    if data_key is None:
        return hashlib.sha256(tagged).digest()
    return hmac.new(data_key.metadata_key(), tagged, hashlib.sha256).digest()


def _check_density(text: bytes) -> None:
    """Refuse JSON of more objects and members than the manifest's files explain: parsed, each takes a hundred times its
    bytes, and nobody has vouched for it yet.
    """
    opened = text.count(b"{") + text.count(b"[")
    if opened > 16 + len(text) // 40 or text.count(b",") > 1024 + len(text) // 20:
        raise MetadataError("the manifest is denser than the files of a checkpoint make it; it was refused")


def _check_packages(packages: Any) -> None:
    _check(
        isinstance(packages, dict)
        and len(packages) <= MAX_PACKAGES
        and packages.keys() >= _ALWAYS_NAMED
        and all(isinstance(text, str) and len(text) <= MAX_PACKAGE_TEXT for pair in packages.items() for text in pair),
        "packages",
    )


def _parse_facts(path: str, facts: Any) -> FileFacts:
    _check_keys(facts, {"size", "writer", "digest"}, f"the manifest's entry for {path!r:.120}")
    size, writer, digest = facts["size"], facts["writer"], facts["digest"]
    _check(type(size) is int and 0 <= size < 2**63, "size")
    _check(is_id(writer), "writer")
    _check(isinstance(digest, str) and _DIGEST.fullmatch(digest) is not None, "digest")
    return FileFacts(size, writer, digest)


def _check(good: bool, key: str) -> None:
    if not good:
        raise MetadataError(f"the manifest's {key!r} is not what the format says")


def _check_keys(value: object, keys: set[str], what: str) -> None:
    if not isinstance(value, dict) or set(value) != keys:
        raise MetadataError(f"{what} must be an object with exactly the keys {', '.join(sorted(keys))}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return made
