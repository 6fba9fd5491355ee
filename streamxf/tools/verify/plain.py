"""A file that `streamxf.open` wrote, checked block by block."""

from __future__ import annotations

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.storage import StoredFile
from streamxf.coder import StreamCoder
from streamxf.engine import Pipeline
from streamxf.errors import (
    ContainerError,
    KeyMissingError,
    KeyServiceError,
    PolicyError,
    StreamxfError,
    WrongKeyError,
)
from streamxf.format.plain import PREFIX_START_BYTES, prefix_size
from streamxf.registry import NOT_AT_HAND
from streamxf.stream.container import read_header
from streamxf.stream.plain import PlainParts
from streamxf.stream.source import FileSlice
from streamxf.tools.verify.blocks import Then, check_along_heads, check_blocks, run
from streamxf.tools.verify.findings import Findings, Notes
from streamxf.wording import many


def check_plain(file: StoredFile, access: Access, findings: Findings) -> None:
    """Check prefix, header, seal, table and every block. Damage goes to `findings`.

    Raises
    ------
    KeyMissingError, WrongKeyError, KeyServiceError, PolicyError
        If there are keys, and they do not fit.
    UnknownCodecError, CodecNotAllowedError, DuplicateCodecError
        If a codec is not installed, and nothing else is wrong.
    """
    notes = Notes(findings, file.name)
    findings.items = 1
    try:
        whole = file.slice(0, file.size)
        parts = PlainParts.of(whole)
    except (StreamxfError, OSError) as error:
        notes.error(error)
        _check_rest(file, notes)
        return
    if len(access.keys) and not parts.header.keyed:
        raise PolicyError(
            "the file is not encrypted, and keys were given; leave the keys out if you know that it was not"
        )
    coder: StreamCoder | None = None
    missing: StreamxfError | None = None
    if parts.header.keyed and not len(access.keys):
        findings.not_checked("seals, tags, vouchers and content, which need a key")
    else:
        try:
            coder = parts.coder(access.keys, access.codecs)
        except (KeyMissingError, WrongKeyError, KeyServiceError, PolicyError):
            raise
        except NOT_AT_HAND as error:
            missing = error
        except ContainerError:
            """The table is damaged, which is found again where it is read for the blocks."""
        except (StreamxfError, OSError) as error:
            notes.error(error)
    pipeline: Pipeline[Then] = Pipeline()
    try:
        check_blocks(parts.container, parts.header, coder, notes, pipeline)
        run(pipeline.results())
    finally:
        pipeline.cancel()
    if missing is not None and notes.damaged:
        findings.not_checked(f"the content, since {missing.message}")
    elif missing is not None:
        checked = f"the CRCs of {many(findings.blocks, 'block')} were compared all the same, and match"
        raise type(missing)(f"{missing.message}. Without it nothing can be decoded; {checked}")


def _check_rest(file: StoredFile, notes: Notes) -> None:
    """Check the blocks of a file of which another part is damaged, as far as they are found."""
    try:
        whole: FileSlice = file.slice(0, file.size)
        start = prefix_size(whole.read_at(0, min(PREFIX_START_BYTES, whole.length)))
        container = whole.slice(start, whole.length)
        header = read_header(container)
    except (StreamxfError, OSError):
        return  # as is noted already
    check_along_heads(container, header, None, notes)
