"""`transcode`: a checkpoint once more, through another chain."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from streamxf.chain import ChainLike
from streamxf.container.limits import DEFAULT_BLOCK_LOG2
from streamxf.convert.encryption import chain_for
from streamxf.convert.job import FILE_SIZE
from streamxf.convert.places import is_same
from streamxf.convert.result import Converted
from streamxf.convert.session import check_target, write_job, writer_to
from streamxf.convert.stored import Stored
from streamxf.dcp.load.items import Require
from streamxf.errors import ParameterError
from streamxf.keys import KeyRing, KeysLike, SignerLike, TrustLike
from streamxf.progress import Progress


def transcode(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    chain: ChainLike | None = None,
    *,
    in_place: bool = False,
    overwrite: bool = False,
    encrypt_to: KeysLike = None,
    signer: SignerLike | None = None,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    block_size: int = 1 << DEFAULT_BLOCK_LOG2,
    file_size: int = FILE_SIZE,
    progress: Progress | None = None,
) -> Converted:
    """Write a DCP checkpoint, streamxf's or stock, once more through another chain.

    Items are copied as streams: workers decode and encode block by block, with all checks of a load, and no tensor is
    ever held whole, but for those that passed a stream extension of somebody else's and are framed in an unusual way.
    Objects are not unpickled. Names, shards and the planner's data stay as they are; where ranks have metadata of their
    own, each keeps its own.

    Data files that are finished stay when the call fails or the process is killed, and the same call resumes from
    there. Where the chain encrypts, that needs a recipient's key that opens, too: with public keys alone it starts
    over.

    Parameters
    ----------
    source : path or str
        The checkpoint's folder, or its URL.
    target : path or str, optional
        Likewise; not there yet, or without a checkpoint.
    chain : Chain, str or codecs, optional
        As in `streamxf.open`; by default that of `FileSystemWriter`. Empty for none: torch's own reader loads that.
        Unlike torch's writer this leaves out the CRC-32 of tensors, as ``torch.serialization.set_crc32_options(False)``
        does; the manifest has a digest of each file.
    in_place : bool
        Write into the source's folder and replace it there, in one step for each metadata file. Whenever the process
        is killed, the old checkpoint loads, or the new one. Needs room for both.
    overwrite : bool
        Whether a checkpoint in the target may be replaced.
    encrypt_to : Key, bytes, location or several, optional
        Who may read the copy, for the word ``encrypt`` in the chain's text form, or for the default chain.
    signer : SigningKey or location, optional
        Shows who wrote the copy, as in `Encrypt`.
    keys, trust, allow_unsigned, require
        To read the source, as in `FileSystemReader`.
    storage_options, target_options : mapping, optional
        fsspec's, for URLs.
    block_size : int
        As in `FileSystemWriter`.
    file_size : int
        Bytes of items, before the chain, that go into one data file; more where there would be too many.
    progress : Progress, optional

    Returns
    -------
    Converted

    Raises
    ------
    FileExistsError
        If there is a checkpoint in the target, and `overwrite` is False.
    ParameterError, ChainError, KeyMissingError
        If the arguments cannot work together.
    NoSpaceError
        If the copy surely does not fit on the disk.
    MetadataError
        If somebody replaced the source while it was read, with `in_place`.
    StreamxfError
        If anything about the source is not as it was saved. Nothing was published then.
    """
    if in_place == (target is not None):
        raise ParameterError("a copy goes to a target, or into the place of its source (in_place): say one of both")
    if target is not None and is_same(source, target):
        raise ParameterError("source and target are the same; to replace the source is what in_place is for")
    ring = KeyRing.of(keys, trust, allow_unsigned)
    made = chain_for(chain, encrypt_to, signer, was_encrypted=len(ring) > 0)
    place = source if target is None else target
    options = storage_options if target is None else target_options
    writer = writer_to(place, made, block_size, options, overwrite=in_place or overwrite)
    if target is not None:
        check_target(writer, overwrite)
    jobs = Stored(source, ring, require, storage_options).jobs(in_place=in_place)
    return Converted.together([write_job(writer, job, file_size, progress) for job in jobs])
