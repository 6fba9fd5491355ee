"""`Converted` and `Unpacked`: what `pack`, `transcode` and `unpack` did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamxf.wording import listed, many, printable, size_text

_ADDED_UP = ("save_ids", "items", "files", "kept_files", "discarded_files", "raw_bytes", "stored_bytes", "seconds")


@dataclass(frozen=True)
class Converted:
    """The result of `pack` and `transcode`.

    Attributes
    ----------
    chain : str
        In its text form.
    key_ids, signers : tuple of str
        Kinds and ids of the keys that open it, as in ``"aeskw:0123456789abcdef"``; ids of those that signed it.
    save_ids : tuple of str
        One for each metadata file.
    items, files : int
        Tensors, shards and objects; data files.
    kept_files : int
        Data files that an interrupted call had finished.
    discarded_files : int
        Finished files of earlier calls with another source or chain, or that cannot be shown to have had the same.
    raw_bytes, stored_bytes : int
        Of the items that this call wrote, before the chain; of all items, in storage.
    seconds : float
    notes : tuple of str
        Remarks, in sentences.
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
        ids = [text.rpartition(":")[2] for text in self.key_ids] + [f"signed by {signer}" for signer in self.signers]
        readers = f" under key {', '.join(ids)}" if ids else ""
        lines = [f"wrote {files} in {self.seconds:.1f} s", f"chain {self.chain or 'none'}{readers}"]
        lines += [f"save {save_id}" for save_id in self.save_ids]
        if self.kept_files:
            lines.append(f"resumed: an earlier call had finished {many(self.kept_files, 'file')}")
        if self.discarded_files:
            lines.append(
                f"started over: {many(self.discarded_files, 'finished file')} had another source, chain or key and "
                "could not be used"
            )
        return "\n".join([*lines, *listed("note", self.notes)])

    @classmethod
    def together(cls, parts: Sequence[Converted]) -> Converted:
        """What several conversions did for one checkpoint."""
        done = parts[0]
        for part in parts[1:]:
            done = replace(done, **{name: getattr(done, name) + getattr(part, name) for name in _ADDED_UP})
        return done


@dataclass(frozen=True)
class Unpacked:
    """The result of `unpack`.

    Attributes
    ----------
    target, format : str
    files, bytes, tensors, objects : int
        How many there are.
    restored : bool
        Whether these are the files that were packed, byte for byte.
    left_out : tuple of str
        Objects that the format cannot hold, and files that were packed beside the written model.
    seconds : float
    notes : tuple of str
        As in `Converted`.
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
