"""Where a checkpoint is written to, and what its data passes: `Extensions`, stream transforms and then the chain."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from streamxf.buffers import Writable
from streamxf.chain import Chain, ChainLike
from streamxf.codec import Codec
from streamxf.codecs.encrypt import Encrypt
from streamxf.codecs.floatzip import FloatZip
from streamxf.errors import KeyMissingError, ParameterError
from streamxf.format.header import Identity
from streamxf.format.limits import DEFAULT_BLOCK_LOG2
from streamxf.format.names import is_metadata_name
from streamxf.keys import KeysLike, SignerLike
from streamxf.registry import CodecRegistry
from streamxf.report import Meter
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.storage import Storage
from streamxf.stream.encoder import ContainerEncoder, block_log2_of
from streamxf.stream.writer import StreamWriter


@dataclass(frozen=True)
class Extensions:
    """What the data passes on save: foreign extensions as streams, then the codecs of the chain as blocks."""

    foreign: tuple[Any, ...]  # torch's stream extensions, which have get_descriptor and transform_to
    chain: Chain

    def renew(self) -> Extensions:
        return Extensions(self.foreign, self.chain.renew())

    def providers(self) -> list[str]:
        """The third-party packages that the codecs come from, as ``StorageMeta.modules`` records them."""
        registry = CodecRegistry()
        return [str(provider) for provider in map(registry.provider, self.chain) if provider is not None]

    def summary(self) -> str:
        """The extensions in save order, without what differs from process to process, and the ids of the keys."""
        names = [extension.get_descriptor() for extension in self.foreign] + list(self.chain.bound)
        text = " > ".join(names or ["no extension"])
        if (encryption := self.encryption) is not None:
            signer = [f"signed by {encryption.signer.id}"] if encryption.signer is not None else []
            text += f" under key {', '.join([*encryption.key_ids, *signer])}"
        return text

    @property
    def recorded(self) -> tuple[str, ...]:
        """The descriptors of a `Place`, in save order."""
        foreign = (f"!{extension.get_descriptor()}" for extension in self.foreign)
        return (*foreign, *map(str, self.chain.descriptors))

    @property
    def in_blocks(self) -> bool:
        """Whether data goes through codecs alone, so that it need not be a stream."""
        return len(self.chain) > 0 and not self.foreign

    @property
    def encryption(self) -> Encrypt | None:
        return self.chain.encryption

    @property
    def hashed(self) -> bool:
        """Whether containers carry a SHA-256 of each block, because the save is signed."""
        return self.encryption is not None and self.encryption.hashed

    def open(
        self,
        raw: Writable,
        identity: Identity,
        *,
        published: bool = False,
        block_log2: int = DEFAULT_BLOCK_LOG2,
        meter: Meter | None = None,
    ) -> SaveStream:
        """Open the streams for one item, into which its bytes are written."""
        container = None
        if len(self.chain):
            encoder = ContainerEncoder(
                self.chain,
                transforms=tuple(f"!{extension.get_descriptor()}" for extension in self.foreign),
                identity=identity,
                published=published,
                hashed=self.hashed and published,
                block_log2=block_log2,
                meter=meter,
            )
            container = StreamWriter(raw, encoder, meter=meter)
        stream: Any = container if container is not None else _Unclosable(raw)
        for extension in reversed(self.foreign):
            stream = extension.transform_to(stream)
        return SaveStream(stream, container)


@dataclass(frozen=True)
class SaveStream:
    """The streams of one item that is being saved: `stream` takes its bytes, and blocks leave by `container`."""

    stream: Any
    container: StreamWriter | None

    def close(self) -> None:
        self.stream.close()
        if self.container is not None:
            self.container.close()  # a foreign stream need not close what it wraps; closing twice is fine

    def abort(self) -> None:
        if self.container is not None:
            self.container.abort()


class _Unclosable:
    """What a foreign stream writes to when no container follows: items share the file, which is flushed and closed once
    all of them are written.
    """

    def __init__(self, raw: Writable) -> None:
        self.write = raw.write

    def flush(self) -> None:
        """As the class says."""

    close = flush


DEFAULT_CHAIN = (FloatZip(),)

_ENCRYPT = "encrypt"


@dataclass(frozen=True)
class Destination:
    """A folder, and how a checkpoint is written to it.

    - `overwrite`: whether a checkpoint that is there may be replaced, even one that is published later.
    """

    storage: Storage
    extensions: Extensions
    block_log2: int
    overwrite: bool

    @classmethod
    def of(
        cls,
        path: Location,
        chain: ChainLike | None,
        *,
        encrypt_to: KeysLike = None,
        signer: SignerLike | None = None,
        was_encrypted: bool = False,
        overwrite: bool = False,
        block_size: int = 1 << DEFAULT_BLOCK_LOG2,
        storage_options: Mapping[str, Any] | None = None,
        cure: str = "name another target, or replace it (overwrite)",
    ) -> Self:
        """Make one of the arguments of public functions; raises what is wrong with them, and FileExistsError, with the
        advice `cure`, if there is a checkpoint that may not be replaced.
        """
        made = _chain_of(chain, encrypt_to, signer, was_encrypted)
        storage = open_storage(path, storage_options)
        warn_unless_in_one_step(storage, stacklevel=4)
        to = cls(storage, Extensions((), made), block_log2_of(block_size), overwrite)
        if storage.near and os.path.lexists(storage.path) and not os.path.isdir(storage.path):
            text = "this is a file, and a checkpoint is a folder: name another target"
            raise NotADirectoryError(errno.ENOTDIR, text, storage.path)
        if not overwrite and any(map(is_metadata_name, storage.names())):
            raise FileExistsError(errno.EEXIST, f"there is a checkpoint already; {cure}", storage.given)
        return to


def _chain_of(chain: ChainLike | None, encrypt_to: KeysLike, signer: SignerLike | None, was_encrypted: bool) -> Chain:
    """The chain to write with; by default that of writers, and `Encrypt` if there are keys for it. The keys belong to
    the word ``encrypt`` of a chain in text form.
    """
    if encrypt_to is None and signer is not None:
        raise ParameterError("signer signs what is encrypted; it needs encrypt_to, the keys of those who may read")
    if chain is None:
        if encrypt_to is not None:
            return Chain([*DEFAULT_CHAIN, Encrypt(encrypt_to, signer=signer)])
        if was_encrypted:
            raise ParameterError(
                "the source is encrypted, and the default chain does not encrypt: give the keys of those who may read "
                "the copy (encrypt_to), or a chain without encrypt to write it unencrypted"
            )
        return Chain(DEFAULT_CHAIN)
    if not isinstance(chain, str):
        if encrypt_to is not None:
            raise ParameterError("encrypt_to= goes with a chain in text form; put Encrypt(...) into this one")
        return Chain.of(chain)
    words = [word.strip() for word in chain.split("+")] if chain.strip() else []
    if _ENCRYPT in words and encrypt_to is None:
        raise KeyMissingError(
            "the chain encrypts, and no key to encrypt to was given: give the keys of those who may read (encrypt_to)"
        )
    if encrypt_to is not None and _ENCRYPT not in words:
        raise ParameterError("keys to encrypt to were given, and the chain does not encrypt: add '+encrypt' to it")
    codecs: list[Codec] = []
    for word in words:
        codecs += [Encrypt(encrypt_to, signer=signer)] if word == _ENCRYPT else list(Chain.parse(word))
    return Chain(codecs)


def warn_unless_in_one_step(storage: Storage, stacklevel: int) -> None:
    """Warn of storage on which a crash while the metadata is replaced may leave no checkpoint at all."""
    if not storage.replaces_in_one_step:
        warnings.warn(
            f"{storage.given} is not known to replace a file in one step: a crash while .metadata is written "
            "may leave neither the old checkpoint nor the new one. Save into a new folder each time, or to a local or "
            "mounted file system, or to an object store",
            stacklevel=stacklevel,
        )
