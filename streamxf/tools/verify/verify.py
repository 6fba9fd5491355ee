"""`verify`: read every byte of a checkpoint or file, and say what is damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from streamxf.checkpoint.access import Access, Require, SaveIds
from streamxf.checkpoint.storage import Storage, storage_errors
from streamxf.errors import NoCheckpointError, ParameterError, located
from streamxf.formats import huggingface
from streamxf.formats.opening import is_checkpoint
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.progress import Progress
from streamxf.proportion import MAX_EXPANSION
from streamxf.tools.verify.checkpoint import check_checkpoint
from streamxf.tools.verify.others import check_file, check_folder
from streamxf.tools.verify.reading import Call
from streamxf.tools.verify.report import FileReport, VerifyReport, report_of

if TYPE_CHECKING:
    from torch.distributed.checkpoint._extension import ExtensionRegistry


def verify(
    path: str | os.PathLike[str],
    keys: KeysLike = None,
    *,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    expect_save_id: SaveIds = None,
    registry: ExtensionRegistry | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_expansion: int = MAX_EXPANSION,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read every byte of a checkpoint, and report which items and blocks are damaged.

    Workers read, compare and decode blocks, as in a load. What fsspec reads is read four files at a time, by one thread
    each. Damage is reported, and does not raise.

    Nothing is loaded. Besides the metadata, verify takes about 20 MiB on 2 CPUs with blocks of 1 MiB, whatever the size
    of the checkpoint; some MiB more for each further CPU, 16 MiB for each file that fsspec reads, and more for larger
    blocks in proportion. One item more is held at a time where only torch can tell which tensor it is (those of
    subclasses), and where it passed a stream transform.

    A file that `streamxf.open` wrote is checked like a checkpoint. Other formats are checked as far as they go: of a
    ``torch.save`` file the directory, the pickle and each record's CRC-32; of a ``.safetensors`` file the header alone,
    since its tensors have no checksums; of a Hugging Face folder the index and each shard.

    Parameters
    ----------
    path : path or str
        The checkpoint's folder or file, or its URL.
    keys : Key, bytes, location, several of them or a KeyRing, optional
        For what is encrypted. Without them everything is checked that needs no key: sizes, digests, structure and the
        CRC of each block, which find accidents, but not deliberate changes.
    trust, allow_unsigned, require
        As in `FileSystemReader`.
    expect_save_id : str or several, optional
        The only save that this may be; where ranks have metadata of their own, the ids of all of them.
    registry, storage_options : optional
        The reader's ``_extension_registry``; fsspec's options, for a URL.
    max_expansion : int
        How many times what a data file's storage holds may be read of it, since holes are not stored, and made of it by
        stream transforms; 256 MiB may be in any case. More is reported as damage.
    progress : Progress, optional
        Is told how many bytes the data files have, and as they are read, by any thread.

    Raises
    ------
    NoCheckpointError, UnsupportedError
        If there is no checkpoint, or one of a kind that cannot be read here.
    KeyMissingError, WrongKeyError, KeyServiceError
        If there are keys, and none of them opens it.
    PolicyError, IdentityError
        If it is weaker than the caller requires, or another save.
    UnknownCodecError, CodecNotAllowedError, DuplicateCodecError
        If a codec is not installed, and nothing is damaged as far as that can be told without it.
    OSError, ForeignError
        If the storage cannot be listed. A file that cannot be read is damage.
    """
    begin = perf_counter()
    make: Callable[..., Access] = Access.of
    if registry is not None:
        from streamxf.dcp.registry import access_with

        make = partial(access_with, registry)
    ring = KeyRing.of(keys, trust, allow_unsigned)
    access = make(ring, require=require, expect_save_id=expect_save_id, max_expansion=max_expansion)
    call = Call(Storage.of(path, storage_options), access, progress)
    layout: huggingface.HubLayout | None = None
    try:
        with storage_errors(call.storage.given):
            is_folder = call.storage.is_folder()
            if is_folder and not is_checkpoint(call.storage):
                layout = huggingface.layout_of(call.storage.names())
    except FileNotFoundError:
        raise NoCheckpointError("there is no checkpoint, and no file or folder", file=call.storage.given) from None
    if is_folder and layout is None:
        return check_checkpoint(call, begin)
    if require is not None or expect_save_id is not None:
        raise ParameterError("require and expect_save_id are for checkpoints of DCP, and this is not one")
    with located(file=call.storage.given):
        if layout is not None:
            check_folder(call, layout)
        else:
            check_file(call)
    return report_of(call.found, begin, kind=FileReport)
