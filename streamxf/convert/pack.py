"""`pack`: a checkpoint of another format as one of DCP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from streamxf.chain import ChainLike
from streamxf.container.limits import DEFAULT_BLOCK_LOG2
from streamxf.convert.encryption import chain_for
from streamxf.convert.job import FILE_SIZE
from streamxf.convert.keep import identity_of, origin_of
from streamxf.convert.places import is_same
from streamxf.convert.raw import RawFiles
from streamxf.convert.result import Converted
from streamxf.convert.session import check_target, write_job, writer_to
from streamxf.convert.transcode import transcode
from streamxf.dcp.load.items import Require
from streamxf.errors import ParameterError
from streamxf.formats.location import Location
from streamxf.formats.opening import open_source
from streamxf.formats.raw import RawSource
from streamxf.keys import KeysLike, SignerLike, TrustLike
from streamxf.progress import Progress
from streamxf.wording import many

_OF_DCP = (".distcp", ".metadata")


def pack(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    chain: ChainLike | None = None,
    *,
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
    """Write a checkpoint of any format as one of DCP, through a chain.

    The source is a ``.safetensors`` or ``torch.save`` file, a Hugging Face folder, or a DCP checkpoint, streamxf's or
    stock. Workers read and encode block by block, so that memory does not depend on the size of the model. Names are
    those that DCP gives: a nested state dict is flattened as by ``dcp.save``.

    What files hold besides tensors and objects goes into one object more, ``streamxf.source``, from which `unpack`
    makes the same files again: headers, the folder's index and its small files (64 MiB together), and of
    ``torch.save`` files the nesting and which tensors share memory.

    A call that failed or was killed can be made again, and goes on, as with `transcode`.

    Parameters
    ----------
    source, target : path or str
        Or URLs. The target is a folder, not there yet, or without a checkpoint.
    chain, overwrite, encrypt_to, signer, storage_options, target_options, block_size, file_size, progress
        As in `transcode`.
    keys, trust, allow_unsigned, require
        For a DCP checkpoint that is encrypted; other formats have nothing that is.

    Returns
    -------
    Converted

    Raises
    ------
    FileNotFoundError, NoCheckpointError, UnsupportedError
        If there is nothing to pack.
    StreamxfError, OSError
        As `transcode`.
    """
    location = Location.of(source, storage_options)
    if location.is_folder() and any(name.endswith(_OF_DCP) for name in location.names()):
        return transcode(
            source,
            target,
            chain,
            overwrite=overwrite,
            encrypt_to=encrypt_to,
            signer=signer,
            keys=keys,
            trust=trust,
            allow_unsigned=allow_unsigned,
            require=require,
            storage_options=storage_options,
            target_options=target_options,
            block_size=block_size,
            file_size=file_size,
            progress=progress,
        )
    if is_same(source, target):
        raise ParameterError("source and target are the same, and the files of one would lie among those of the other")
    with open_source(source, storage_options=storage_options) as opened:
        assert isinstance(opened, RawSource)  # all but those of DCP
        made = chain_for(chain, encrypt_to, signer, was_encrypted=False)
        writer = writer_to(target, made, block_size, target_options, overwrite=overwrite)
        check_target(writer, overwrite)
        origin = origin_of(location, opened)
        identity = partial(identity_of, location, opened.contents, origin)
        job = RawFiles(location, opened, origin.to_plain(), identity).job()
        done = write_job(writer, job, file_size, progress)
    return replace(done, notes=(_note_of(sorted(origin.left_out)),)) if origin.left_out else done


def _note_of(left_out: list[str]) -> str:
    verb = "was" if len(left_out) == 1 else "were"
    return f"{many(len(left_out), 'file')} of the folder {verb} not kept, such as {left_out[0]}: too large together"
