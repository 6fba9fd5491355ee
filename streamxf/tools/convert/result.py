"""`Converted` and `Unpacked`: what `pack`, `transcode` and `unpack` did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamxf.wording import listed, many, printable, size_text


@dataclass(frozen=True)
class Converted:
    """What was written.

    Attributes
    ----------
    chain : str
        In its text form.
    key_ids : tuple of str
        Kinds and ids of the keys that open it, as in ``"aeskw:0123456789abcdef"``.
    signers : tuple of str
        Ids of the keys that signed it.
    save_ids : tuple of str
        Of the new checkpoint; where ranks have metadata of their own, one for each.
    items : int
        Tensors, shards and objects.
    files : int
        Data files.
    kept_files : int
        Those of them that an earlier call had finished before it was stopped.
    discarded_files : int
        Those that another call had finished: of another source or chain, or not shown to be of this one.
    raw_bytes : int
        Of the items that were written by this call, before the chain.
    stored_bytes : int
        Of all items, in storage.
    seconds : float
    notes : tuple of str
        In plain sentences, what else there is to know.
    """

    chain: str
    key_ids: tuple[str, ...]
    signers: tuple[str, ...]
    save_ids: tuple[str, ...]
    items: int
    files: int
    kept_files: int
    discarded_files: int
    raw_bytes: int
    stored_bytes: int
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        files = f"{many(self.items, 'item')} in {many(self.files, 'file')}, {size_text(self.stored_bytes)} stored"
        lines = [f"wrote {files} in {self.seconds:.1f} s", f"chain {self.chain or 'none'}{self._readers()}"]
        lines += [f"save {save_id}" for save_id in self.save_ids]
        if self.kept_files:
            lines.append(f"resumed: {many(self.kept_files, 'file')} of an earlier call were finished")
        if self.discarded_files:
            lines.append(
                f"started over: {many(self.discarded_files, 'finished file')} of another source, chain or key could "
                "not be used"
            )
        return "\n".join([*lines, *listed("note", self.notes)])

    def _readers(self) -> str:
        ids = [text.rpartition(":")[2] for text in self.key_ids] + [f"signed by {signer}" for signer in self.signers]
        return f" under key {', '.join(ids)}" if ids else ""

    @classmethod
    def together(cls, parts: Sequence[Converted]) -> Converted:
        """What several calls did for one checkpoint."""
        return replace(
            parts[0],
            save_ids=tuple(save_id for part in parts for save_id in part.save_ids),
            items=sum(part.items for part in parts),
            files=sum(part.files for part in parts),
            kept_files=sum(part.kept_files for part in parts),
            discarded_files=sum(part.discarded_files for part in parts),
            raw_bytes=sum(part.raw_bytes for part in parts),
            stored_bytes=sum(part.stored_bytes for part in parts),
            seconds=sum(part.seconds for part in parts),
            notes=tuple(note for part in parts for note in part.notes),
        )


@dataclass(frozen=True)
class Unpacked:
    """What `unpack` wrote.

    Attributes
    ----------
    target : str
    format : str
        For people.
    files : int
    bytes : int
        Of all files.
    tensors, objects : int
        How many are in them.
    restored : bool
        Whether these are the files that were packed, byte for byte.
    left_out : tuple of str
        Objects that are not in them, because the format has no place for objects; and files that were packed with the
        model that was written.
    seconds : float
    notes : tuple of str
        In plain sentences, what else there is to know.
    """

    target: str
    format: str
    files: int
    bytes: int
    tensors: int
    objects: int
    restored: bool
    left_out: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = many(self.tensors, "tensor") + (f" and {many(self.objects, 'object')}" if self.objects else "")
        lines = [
            f"wrote {what} to {printable(self.target)}: {self.format}, {many(self.files, 'file')}, "
            f"{size_text(self.bytes)} in {self.seconds:.1f} s"
        ]
        if self.restored:
            lines.append("as it was when it was packed")
        return "\n".join([*lines, *listed("left out", self.left_out), *listed("note", self.notes)])
