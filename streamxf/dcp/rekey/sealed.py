"""A metadata file with a MAC, opened for work on its wrapped keys alone: its pickle is authenticated and never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from streamxf.dcp.folder import rank_of
from streamxf.dcp.metadata.file import key_fragment
from streamxf.dcp.metadata.limits import MAX_METADATA
from streamxf.dcp.metadata.manifest import Manifest, Parts, append_trailer, split
from streamxf.dcp.rekey.texts import Outline
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.errors import KeyMissingError, MetadataError, PolicyError, UnsupportedError
from streamxf.keys import KeyRing
from streamxf.keys.datakey import DataKey
from streamxf.keys.envelope import Envelope

_PREFIX = f"{ENCRYPT}/1#dek=".encode("ascii")


@dataclass(frozen=True)
class Sealed:
    """A metadata file as it was found, nothing of it believed yet.

    Attributes
    ----------
    name : str
    data : bytes
        The whole file.
    envelope : Envelope
        Of the process that wrote the file.
    """

    name: str
    data: bytes
    envelope: Envelope
    _parts: Parts

    @classmethod
    def parse(cls, name: str, data: bytes) -> Sealed:
        """Take a file apart.

        Raises
        ------
        UnsupportedError
            If there is no manifest: no MAC would show that the metadata is authentic.
        PolicyError
            If the checkpoint is not encrypted.
        MetadataError, DescriptorError
            If it is damaged.
        """
        parts = split(data)
        if not parts.has_manifest:
            raise UnsupportedError(
                "the metadata does not end in a manifest. If streamxf's writer saved this checkpoint, the file was cut "
                "or altered: restore it. If another writer did, through Encrypt, no MAC shows which keys belong here: "
                "load the checkpoint, and save it with streamxf's writer"
            )
        if parts.key is None:
            raise PolicyError("the checkpoint is not encrypted, so it has no recipients; save it with Encrypt")
        return cls(name, data, Envelope.parse(key_fragment(parts.key)), parts)

    def open(self, keys: KeyRing) -> Opened:
        """Unwrap all data keys, and check signatures and MAC.

        Raises
        ------
        KeyMissingError, WrongKeyError, PolicyError, AuthenticationError, KeyServiceError
            As `Envelope.open`.
        AuthenticationError
            If the MAC does not match.
        MetadataError, DescriptorError
            If what was authenticated is damaged, or is another file's.
        """

        def unwrap(envelope: Envelope) -> DataKey:
            return keys.unwrap(envelope.fragment)

        try:
            return self._open(unwrap)
        except KeyMissingError as error:
            raise KeyMissingError(f"this checkpoint is {error.message}") from None

    def reopen(self, data_keys: Mapping[Envelope, DataKey]) -> Opened:
        """The same for a file that was opened before, with its data keys as they were found then."""
        return self._open(data_keys.__getitem__)

    def _open(self, unwrap: Callable[[Envelope], DataKey]) -> Opened:
        data_key = unwrap(self.envelope)
        manifest = self._parts.checked(data_key)
        if manifest.rank != rank_of(self.name):
            raise MetadataError("this file was renamed or copied: its manifest belongs to another name")
        pickled = bytes(self._parts.pickled)
        outline = Outline.of(pickled, _PREFIX)
        envelopes = {
            text: Envelope.parse(Descriptor.parse(str(text, "ascii", "replace")).fragment)
            for text in dict.fromkeys(text.data for text in outline.texts)
        }
        data_keys = {envelope: unwrap(envelope) for envelope in (self.envelope, *envelopes.values())}
        return Opened(self, data_key, manifest, pickled, outline, envelopes, data_keys)


@dataclass(frozen=True)
class Opened:
    """A metadata file whose MAC was found right.

    Attributes
    ----------
    sealed : Sealed
    """

    sealed: Sealed
    _data_key: DataKey
    _manifest: Manifest
    _pickled: bytes
    _outline: Outline
    _envelopes: dict[bytes, Envelope]
    _data_keys: dict[Envelope, DataKey]

    @property
    def data_keys(self) -> Mapping[Envelope, DataKey]:
        """What is wrapped in each of the envelopes."""
        return self._data_keys

    @property
    def save_id(self) -> str:
        """Which save the file belongs to."""
        return self._manifest.save_id

    @property
    def envelopes(self) -> tuple[Envelope, ...]:
        """One for each process that wrote items, and for the one that wrote the file."""
        return tuple(self._data_keys)

    def changed(self, made: Mapping[Envelope, Envelope]) -> bytes:
        """The file with other envelopes, one for each that it has, and a MAC that matches.

        Raises
        ------
        MetadataError
            If it would be too large to be read.
        """
        new = {text: _described(made[envelope]).encode("ascii") for text, envelope in self._envelopes.items()}
        pickled = self._outline.exchange(self._pickled, new)
        manifest = replace(self._manifest, key=_described(made[self.sealed.envelope]))
        data = append_trailer(pickled, manifest, self._data_key)
        if len(data) > MAX_METADATA:
            raise MetadataError(
                f"the metadata would have {len(data)} bytes, {MAX_METADATA} are allowed; name fewer recipients"
            )
        self._check(data, new)
        return data

    def _check(self, data: bytes, new: dict[bytes, bytes]) -> None:
        """Read what was made, as a reader does: with this file, all data would be lost."""
        parts = split(data)
        parts.check_tag(self._data_key)
        texts = [text.data for text in Outline.of(bytes(parts.pickled), _PREFIX).texts]
        if texts != [new[text.data] for text in self._outline.texts]:
            raise MetadataError("the metadata's texts cannot be exchanged; it was left as it is")


def _described(envelope: Envelope) -> str:
    return str(Descriptor(ENCRYPT, 1, (), envelope.fragment))
