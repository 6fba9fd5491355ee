"""`Unpacked`: what `unpack` wrote."""

from __future__ import annotations

from dataclasses import dataclass

from streamxf.wording import listed, many, printable, size_text


@dataclass(frozen=True)
class Unpacked:
    """What was written.

    Attributes
    ----------
    target : str
    format : str
        For people.
    files : int
    bytes : int
        Of all files.
    kept_bytes : int
        Those of them that an earlier call had written before it was stopped.
    tensors, objects : int
        How many are in them.
    restored : bool
        Whether these are the files that were packed, byte for byte.
    left_out : tuple of str
        Objects that are not in them, because the format has no place for objects; and files that were packed beside the
        model that was written.
    seconds : float
    notes : tuple of str
        In plain sentences, what else there is to know.
    """

    target: str
    format: str
    files: int
    bytes: int
    kept_bytes: int
    tensors: int
    objects: int
    restored: bool
    left_out: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = (
            f"{many(self.tensors, 'tensor')} and {many(self.objects, 'object')}"
            if self.objects
            else many(self.tensors, "tensor")
        )
        lines = [
            f"wrote {what} to {printable(self.target)}: {self.format}, {many(self.files, 'file')}, "
            f"{size_text(self.bytes)} in {self.seconds:.1f} s"
        ]
        if self.restored:
            lines.append("as it was when it was packed")
        if self.kept_bytes:
            lines.append(f"resumed: an earlier call had written {size_text(self.kept_bytes)}")
        return "\n".join([*lines, *listed("left out", self.left_out), *listed("note", self.notes)])
