"""A file that `streamxf.open` wrote, for work on its wrapped keys: they stand in its prefix, before the container."""

from __future__ import annotations

import hmac
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streamxf.buffers import write_all
from streamxf.container.header import Header
from streamxf.container.limits import PLAIN_MAGIC
from streamxf.dcp.folder import digest
from streamxf.descriptor import Parameters, parse_parameters
from streamxf.errors import AuthenticationError, ContainerError, KeyMissingError, PolicyError, UnsupportedError
from streamxf.fileio.blocks import read_header
from streamxf.fileio.draft import Draft
from streamxf.fileio.plain import check_prefix, split_prefix
from streamxf.fileio.prefix import pack_fragment, parse_prefix
from streamxf.fileio.source import FileSlice
from streamxf.keys import KeyRing
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope

_COPIED = 16 * 2**20  # bytes at a time


class PlainFile:
    """Where it is; has the methods of a checkpoint's `Folder` that changing recipients needs.

    Parameters
    ----------
    path : path or str
        Local: a file at a URL cannot be replaced in one step everywhere.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    @staticmethod
    def is_one(path: str | os.PathLike[str]) -> bool:
        """Whether there is such a file, on a local file system."""
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(PLAIN_MAGIC)) == PLAIN_MAGIC

    def names(self) -> list[str]:
        """Its own."""
        return [os.path.basename(self.path)]

    def full(self, name: str) -> str:
        """Its path, for errors."""
        return self.path

    def read(self, name: str) -> bytes:
        """The prefix, and the container's header behind it; raises ContainerError if they are damaged."""
        with open(self.path, "rb", buffering=0) as file:
            whole = FileSlice(file)
            _, source = split_prefix(whole)
            return whole.read_at(0, whole.length - source.length + read_header(source).size)

    def replace(self, name: str, old: bytes, new: bytes) -> None:
        """Write the file anew with the beginning `new`, if its beginning has the `digest` `old`; it takes its place in
        one step.

        Raises
        ------
        ContainerError
            If something else stands there by now.
        OSError
            If it cannot be written. What was there is then still there.
        """
        draft = Draft(self.path)
        written = False
        try:
            with open(self.path, "rb", buffering=0) as file:
                before = self.read(name)
                if digest(before) != old:
                    raise self.replaced(name)
                write_all(draft.file, new)
                file.seek(len(before))
                while piece := file.read(_COPIED):
                    write_all(draft.file, piece)
            written = True
        finally:
            draft.finish(written)

    def replaced(self, name: str) -> ContainerError:
        """The error for a file that is not what was read before."""
        return ContainerError(
            "the file was replaced meanwhile; it was left as it is. Try again when nobody writes to it", file=self.path
        )


@dataclass(frozen=True)
class SealedFile:
    """The beginning of a file, nothing of it believed yet.

    Attributes
    ----------
    name : str
    data : bytes
        Prefix and header.
    envelope : Envelope
    """

    name: str
    data: bytes
    envelope: Envelope
    _header: Header

    @classmethod
    def parse(cls, name: str, data: bytes) -> SealedFile:
        """Take it apart.

        Raises
        ------
        PolicyError
            If it is not encrypted.
        ContainerError, DescriptorError
            If it is damaged.
        """
        fragment, source = split_prefix(FileSlice(io.BytesIO(data)))
        header = read_header(source)
        check_prefix(header, fragment)
        if header.identity is not None:
            raise ContainerError("the file holds an item cut out of a checkpoint, which is no plain file")
        if not fragment:
            raise PolicyError("the file is not encrypted, so it has no recipients; write it with Encrypt")
        return cls(name, data, Envelope.parse(_parameters(fragment)), header)

    def open(self, keys: KeyRing) -> OpenedFile:
        """Unwrap the data key, and check who signed it and the header's seal.

        Raises
        ------
        KeyMissingError, WrongKeyError, PolicyError, AuthenticationError, KeyServiceError
            As `Envelope.open`.
        AuthenticationError
            If the seal does not match.
        """
        try:
            return self._open(lambda envelope: keys.unwrap(envelope.fragment))
        except KeyMissingError as error:
            raise KeyMissingError(f"this file is {error.message}") from None

    def reopen(self, data_keys: Mapping[Envelope, DataKey]) -> OpenedFile:
        """The same for a file that was opened before, with the data key as it was found then."""
        return self._open(data_keys.__getitem__)

    def _open(self, unwrap: Callable[[Envelope], DataKey]) -> OpenedFile:
        data_key = unwrap(self.envelope)
        _, seal = data_key.stream_keys(self._header.salt, self._header.digest)
        if not hmac.compare_digest(seal, self._header.seal or b""):
            raise AuthenticationError("the header's seal does not match: the file was altered, or its keys are others'")
        return OpenedFile(self, data_key)


@dataclass(frozen=True)
class OpenedFile:
    """The beginning of a file whose seal was found right."""

    sealed: SealedFile
    _data_key: DataKey

    save_id = ""

    @property
    def data_keys(self) -> Mapping[Envelope, DataKey]:
        """What is wrapped in the envelope."""
        return {self.sealed.envelope: self._data_key}

    @property
    def envelopes(self) -> tuple[Envelope, ...]:
        """The only one."""
        return (self.sealed.envelope,)

    def changed(self, made: Mapping[Envelope, Envelope]) -> bytes:
        """Prefix and header with another envelope."""
        envelope = made[self.sealed.envelope]
        prefix = pack_fragment(envelope.fragment)
        if Envelope.parse(_parameters(parse_prefix(prefix))) != envelope:
            raise UnsupportedError("the file's wrapped keys cannot be exchanged; it was left as it is")
        return prefix + self.sealed.data[-self.sealed._header.size :]


def _parameters(fragment: str) -> Parameters:
    return parse_parameters(fragment, repeatable=("w",))
