"""Notes: small files that say something of a checkpoint, vouched for as an index is; docs/format.md, "Notes"."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from streamxf import errors
from streamxf.buffers import collector_paused
from streamxf.checkpoint.access import Access
from streamxf.checkpoint.metadata import check_vouchers
from streamxf.codecs.encrypt import Encrypt
from streamxf.format.limits import MAX_NOTE, MAX_NOTE_MARKS, MAX_PATH
from streamxf.format.sections import NOTE_LABEL, Sections, Trailer, check_plain, pack, pack_json, pack_keys, parse_json
from streamxf.keys.envelope import KeySet, Vouchers
from streamxf.keys.pair import SigningKey, VerifyKey

T = TypeVar("T")

_NOT_IN_NAMES = re.compile(r"[\x00\ud800-\udfff]")  # of files that others wrote
_CURE = "the checkpoint has too many files for one"


@dataclass(frozen=True)
class Note:
    """A note, of which nothing is parsed until its content is asked for: after `check`, where there are keys."""

    sections: Sections = field(repr=False)
    _lines: tuple[str, str] | None = field(repr=False)

    @staticmethod
    def seal(content: Any, encryption: Encrypt | None = None, signer: SigningKey | None = None) -> bytes:
        """A note of plain JSON that `encryption` vouches for, or `signer`; MetadataError if readers refuse it."""
        check_plain(content, "the note")
        frame, keys = pack_json(content, "the note", _CURE, MAX_NOTE, MAX_NOTE_MARKS), b""
        digest = Sections(memoryview(frame), memoryview(b""), NOTE_LABEL).digest
        if encryption is not None:
            fresh = encryption.renew()
            keys = pack_keys(fresh.wrapped, fresh.vouch(digest))
        elif signer is not None:
            keys = pack_keys("", str(Vouchers(b"").with_signature(digest, signer)))
        made = pack(b"", b"", frame, keys)
        if len(made) > MAX_NOTE:
            raise errors.MetadataError(f"the note would have {len(made)} bytes, {MAX_NOTE} are allowed; {_CURE}")
        return made

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read a note, unauthenticated before `check`. Raises MetadataError if it is damaged."""
        if len(data) > MAX_NOTE:
            raise errors.MetadataError(f"the note has {len(data)} bytes, {MAX_NOTE} are allowed")
        trailer = Trailer.parse(data, len(data))
        if trailer is None or trailer.size != len(data) or trailer.head_digest != hashlib.sha256().digest():
            raise errors.MetadataError("this is not a note: it was truncated, or something else was put in its place")
        sections = trailer.split(data, NOTE_LABEL)
        lines = sections.key_lines()
        if lines is not None:
            try:
                KeySet.parse(*lines, sections.digest)
            except errors.DescriptorError as error:
                raise errors.MetadataError(f"the note's keys are malformed: {error.message}") from None
        return cls(sections, lines)

    @staticmethod
    def check_path(path: object) -> str:
        """The path of a file that others wrote, taken literally; MetadataError if it leads out, or is not UTF-8."""
        text = ascii(path)[:120]
        if not isinstance(path, str) or _NOT_IN_NAMES.search(path):
            raise errors.MetadataError(f"a file's name is not UTF-8, so no note can name it; rename it: {text}")
        if len(path.encode()) > MAX_PATH or any(part in ("", ".", "..") for part in path.split("/")):
            raise errors.MetadataError(f"a file's path leads out of the checkpoint, or is too long: {text}")
        return path

    @property
    @collector_paused()
    def content(self) -> Any:
        """What it says. Raises MetadataError if it is damaged or hostile."""
        content = parse_json(self.sections.root, "the note", MAX_NOTE, MAX_NOTE_MARKS)
        check_plain(content, "the note")
        return content

    @property
    def keyed(self) -> bool:
        """Whether it has vouchers."""
        return self._lines is not None

    def check(self, access: Access) -> None:
        """Check who vouches for it; raises as `read_metadata` does for a checkpoint with the same keys."""
        check_vouchers(self.sections, self._lines, access, "the note", bool(len(access.keys)) or not access.trust)

    def said(self, make: Callable[[Any], T], access: Access | None = None) -> T:
        """What it says; with keys, once these have shown who wrote it. Raises MetadataError, and as `check`."""
        if access is not None and (len(access.keys) > 0 or access.refuses_plaintext or access.trust):
            self.check(access)
        try:
            return make(self.content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise errors.MetadataError(f"the note is malformed ({type(error).__name__}: {error})") from None

    def signed_by(self, trust: Iterable[VerifyKey]) -> bool:
        """As `Metadata.signed_by`."""
        return self._lines is not None and Vouchers.parse(self._lines[1]).signed_by(trust, self.sections.digest)
