"""A file that `streamxf.open` wrote, checked block by block."""

from __future__ import annotations

from dataclasses import dataclass

from streamxf.coder import StreamCoder
from streamxf.container.header import Header
from streamxf.dcp.verify.container import Then, check_blocks
from streamxf.dcp.verify.report import Findings
from streamxf.engine import Pipeline
from streamxf.errors import (
    CodecNotAllowedError,
    ContainerError,
    DuplicateCodecError,
    KeyMissingError,
    KeyServiceError,
    PolicyError,
    StreamxfError,
    UnknownCodecError,
    WrongKeyError,
)
from streamxf.fileio.blocks import read_header
from streamxf.fileio.plain import check_prefix, coder_for, split_prefix
from streamxf.fileio.prefix import START_BYTES, prefix_size
from streamxf.fileio.source import FileSlice
from streamxf.keys import KeyRing
from streamxf.registry import CodecRegistry
from streamxf.wording import many

_NO_CODEC = (UnknownCodecError, CodecNotAllowedError, DuplicateCodecError)
_CALLERS = (KeyMissingError, WrongKeyError, KeyServiceError, PolicyError)


def check_plain(whole: FileSlice, name: str, keys: KeyRing, registry: CodecRegistry, findings: Findings) -> None:
    """Check prefix, header, index and every block. Damage goes to `findings`.

    Raises
    ------
    KeyMissingError, WrongKeyError, KeyServiceError, PolicyError
        If there are keys, and they do not fit.
    UnknownCodecError, CodecNotAllowedError, DuplicateCodecError
        If a codec is not at hand, and nothing else is wrong.
    """
    findings.files = findings.items = 1
    findings.bytes_read = whole.length
    try:
        fragment, source = _opened(whole, name, findings)
        header = read_header(source)
    except (StreamxfError, OSError) as error:
        findings.damage(error, name)
        return
    if len(keys) and not header.keyed:
        raise PolicyError("the file is not encrypted, and keys were given; leave keys= out if you know that it was not")
    missing: StreamxfError | None = None
    coder: StreamCoder | None = None
    try:
        if fragment is not None:
            check_prefix(header, fragment)
            if header.keyed and not len(keys):
                findings.not_checked("seals, tags and content, which need a key")
            else:
                coder = coder_for(header, fragment, keys, registry)
    except _CALLERS:
        raise
    except _NO_CODEC as error:
        missing = error
    except StreamxfError as error:
        findings.damage(error, name)
    _check_blocks(source, header, coder, _Notes(findings, name))
    if missing is not None:
        if findings.damages_in(name):
            findings.not_checked(f"the content, since {missing.message}")
        else:
            checked = f"the CRCs of {many(findings.blocks, 'block')} were compared all the same, and match"
            raise type(missing)(f"{missing.message}. Without it nothing can be decoded; {checked}")


def _opened(whole: FileSlice, name: str, findings: Findings) -> tuple[str | None, FileSlice]:
    """The fragment, which is None where the prefix is damaged, and the container."""
    try:
        return split_prefix(whole)
    except ContainerError as error:
        findings.damage(error, name)
        return None, whole.rest(prefix_size(whole.read_at(0, min(START_BYTES, whole.length))))


def _check_blocks(source: FileSlice, header: Header, coder: StreamCoder | None, notes: _Notes) -> None:
    pipeline: Pipeline[Then] = Pipeline(_do)
    try:
        check_blocks(source, header, coder, None, notes, pipeline, None)
        pipeline.settle()
    finally:
        pipeline.cancel()


@dataclass
class _Notes:
    """Where `check_blocks` tells what it finds."""

    findings: Findings
    name: str
    framed: bool = False

    @property
    def counts_crcs(self) -> bool:
        return False

    def error(self, error: Exception, block: int | None = None) -> None:
        self.findings.damage(error, self.name, block=block)

    def block(self) -> None:
        self.findings.blocks += 1

    def crc(self, start: int, size: int, crc: int) -> None:
        """Nobody has a digest of the whole file."""


def _do(then: Then) -> None:
    then()
