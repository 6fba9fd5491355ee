"""Texts in a pickle, exchanged for others without unpickling it; all else keeps its bytes.

To unpickle metadata and to pickle it again would lose what only a newer torch knows of it, and run what the pickle
says. A text, in contrast, is one opcode with a length and its bytes, and nothing in a pickle says where something
stands, so another text fits into its place. Only frames (protocol 4 and 5) have a length, which changes with them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from streamxf.errors import MetadataError

_PROTO, _FRAME, _STOP, _GLOBAL = 0x80, 0x95, ord("."), ord("c")
_TEXTS = {0x8C: 1, ord("X"): 4, 0x8D: 8}  # with the bytes that the length takes
_OTHERS = {ord("C"): 1, ord("B"): 4, 0x8E: 8, 0x96: 8, 0x8A: 1, 0x8B: 4}  # bytes objects, and long numbers
_SIZED = _TEXTS | _OTHERS
# the rest, by the bytes that follow the opcode; these make up most of a pickle, so that many are passed in one step
_PLAIN = re.compile(
    rb"(?:[N\x88\x89\]ael)t\x85\x86\x87}dsu\x8f\x90\x91021(\x94\x93Rbo\x81\x92]|[Khq].|M..|[Jjr].{4}|G.{8}){1,4096}+",
    re.DOTALL,
)


@dataclass(frozen=True)
class Text:
    """A text in a pickle.

    Attributes
    ----------
    start, stop : int
        Where its opcode begins, and where its bytes end.
    data : bytes
        UTF-8.
    """

    start: int
    stop: int
    data: bytes


@dataclass(frozen=True)
class Outline:
    """Where things stand in a pickle.

    Attributes
    ----------
    texts : tuple of Text
        Those that were looked for, in their order.
    frames : tuple of (int, int)
        Where each frame's contents begin and end, in their order.
    """

    texts: tuple[Text, ...]
    frames: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, pickled: bytes, prefix: bytes) -> Outline:
        """Look for texts that begin with `prefix`. Nothing is unpickled.

        Raises
        ------
        MetadataError
            If this is no pickle of protocol 2 to 5, is damaged, or something follows it.
        """
        try:
            return cls._of(pickled, prefix)
        except (IndexError, ValueError):  # a position behind the end; a name without its end
            raise MetadataError("the metadata is damaged: its pickle is cut") from None

    @classmethod
    def _of(cls, data: bytes, prefix: bytes) -> Outline:
        if not (data[0] == _PROTO and 2 <= data[1] <= 5):
            raise MetadataError("the metadata is no pickle of protocol 2 to 5: it is damaged, or no metadata")
        texts: list[Text] = []
        frames: list[tuple[int, int]] = []
        position = 2
        while (code := data[position]) != _STOP:
            begin = position
            if (width := _SIZED.get(code)) is not None:
                start = begin + 1 + width
                position = start + int.from_bytes(data[begin + 1 : start], "little")
                if code in _TEXTS and data.startswith(prefix, start, position):
                    texts.append(Text(begin, position, data[start:position]))
            elif (plain := _PLAIN.match(data, begin)) is not None:
                position = plain.end()
            elif code == _FRAME:
                position = begin + 9
                frames.append((position, position + int.from_bytes(data[begin + 1 : position], "little")))
            elif code == _GLOBAL:
                position = data.index(b"\n", data.index(b"\n", begin) + 1) + 1
            else:
                raise MetadataError(f"the metadata's pickle has the opcode {code:#04x}, which no metadata needs")
        if position != len(data) - 1:
            raise MetadataError("something follows the metadata's pickle: the file is damaged")
        return cls(tuple(texts), tuple(frames))

    def exchange(self, pickled: bytes, new: Mapping[bytes, bytes]) -> bytes:
        """The pickle with other texts.

        Parameters
        ----------
        pickled : bytes
            The one that this is the outline of.
        new : mapping of bytes to bytes
            For each text that was found, what to put into its place.

        Raises
        ------
        MetadataError
            If a text reaches beyond its frame, as in no whole pickle.
        """
        changed = [text for text in self.texts if new[text.data] != text.data]
        edits = [(text.start, text.stop, _opcode(new[text.data])) for text in changed]
        starts = [start for start, _, _ in edits]
        growth = [0, *accumulate(len(made) - (stop - start) for start, stop, made in edits)]
        for begin, end in self.frames:
            first, after = bisect_left(starts, begin), bisect_left(starts, end)
            if after > first and edits[after - 1][1] > end:
                raise MetadataError("the metadata is damaged: a text of its pickle reaches beyond its frame")
            if grown := growth[after] - growth[first]:
                edits.append((begin - 8, begin, (end - begin + grown).to_bytes(8, "little")))
        parts: list[bytes] = []
        position = 0
        for start, stop, made in sorted(edits):
            parts += [pickled[position:start], made]
            position = stop
        return b"".join([*parts, pickled[position:]])


def _opcode(text: bytes) -> bytes:
    return b"X" + len(text).to_bytes(4, "little") + text  # which all protocols have
