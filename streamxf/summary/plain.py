"""`PlainSummary`: what a file that `streamxf.open` wrote says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamxf.descriptor import parse_parameters
from streamxf.errors import located
from streamxf.fileio.blocks import BlockReader, read_header
from streamxf.fileio.plain import check_prefix, coder_for, split_prefix
from streamxf.fileio.reader import StreamReader
from streamxf.fileio.source import FileSlice
from streamxf.formats.contents import Format
from streamxf.formats.location import Location
from streamxf.keys import KeyRing
from streamxf.keys.envelope import Envelope
from streamxf.registry import CodecRegistry, short_name

_UNPROVED = "It is encrypted, and nobody has vouched for what it says here: that needs a key."
_UNSIGNED = "The signature was not checked."


@dataclass(frozen=True)
class PlainSummary:
    """A file that `streamxf.open` wrote, by its prefix, header and footer.

    Attributes
    ----------
    path : str
    chain : tuple of str
        Descriptors in save order, without their fragments.
    raw_bytes : int
        What it decodes to.
    file_bytes : int
    blocks, block_size : int
    key_ids : tuple of str
        Kinds and ids of the keys that open it, as in ``"aeskw:0123456789abcdef"``.
    signers : tuple of str
    notes : tuple of str
        In plain sentences, what a reader should know.
    """

    path: str
    chain: tuple[str, ...]
    raw_bytes: int
    file_bytes: int
    blocks: int
    block_size: int
    key_ids: tuple[str, ...]
    signers: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """Bytes of the file over what it decodes to; None for an empty stream."""
        return self.file_bytes / self.raw_bytes if self.raw_bytes else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": self.path,
            "format": str(Format.PLAIN),
            "raw_bytes": self.raw_bytes,
            "file_bytes": self.file_bytes,
            "ratio": self.ratio,
            "chain": "+".join(short_name(descriptor.partition("/")[0]) for descriptor in self.chain),
            "descriptors": list(self.chain),
            "blocks": self.blocks,
            "block_size": self.block_size,
            "key_ids": list(self.key_ids),
            "signers": list(self.signers),
            "notes": list(self.notes),
        }

    @classmethod
    def read(cls, location: Location, keys: KeyRing) -> PlainSummary:
        """Read what the file says; with keys it has to be true.

        Raises
        ------
        ContainerError
            If it is damaged.
        KeyMissingError, WrongKeyError, AuthenticationError, PolicyError
            If there are keys, and they do not fit.
        OSError
            If it cannot be read.
        """
        with location.open(random=True) as file, located(file=location.given):
            whole = FileSlice(file)
            fragment, source = split_prefix(whole)
            header = read_header(source)
            check_prefix(header, fragment)
            if len(keys):
                blocks = BlockReader(source, header, coder_for(header, fragment, keys, CodecRegistry()))
                StreamReader(blocks).close()  # decodes the last block, which vouches for the size
            else:
                blocks = BlockReader(source, header, None)
        envelope = Envelope.parse(parse_parameters(fragment, repeatable=("w",))) if fragment else None
        signature = envelope.signature if envelope is not None else None
        notes = [_UNPROVED] if envelope is not None and not len(keys) else []
        if signature is not None and signature[0] not in [key.id for key in keys.trust]:
            notes.append(_UNSIGNED)
        return cls(
            location.given,
            header.chain,
            blocks.size,
            whole.length,
            blocks.count,
            blocks.block_size,
            tuple(f"{each.kind}:{each.key_id}" for each in envelope.recipients) if envelope is not None else (),
            (signature[0],) if signature is not None else (),
            tuple(notes),
        )
