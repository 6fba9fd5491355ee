"""`salvage`: from a damaged checkpoint every item that verifies, and a list of those that do not."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint._extension import ExtensionRegistry

from streamxf.dcp.compat import metadata_name
from streamxf.dcp.load.items import Require
from streamxf.dcp.metadata import file as metadata_file
from streamxf.dcp.metadata.file import UnreadableMetadata
from streamxf.dcp.metadata.save_ids import UNKNOWN_RANKS, SaveIds, as_save_ids
from streamxf.dcp.objects.policy import Objects
from streamxf.dcp.publish.listing import OWN_FILE, RANK_METADATA, TORCH_FILE, list_files
from streamxf.dcp.salvage.catalog import Catalog
from streamxf.dcp.salvage.fill import Filler
from streamxf.dcp.salvage.rebuild import rebuild
from streamxf.dcp.salvage.result import Lost, Salvaged
from streamxf.dcp.salvage.session import FsspecSession, LocalSession, Session
from streamxf.errors import (
    IdentityError,
    KeyMissingError,
    KeyServiceError,
    MetadataError,
    ParameterError,
    PolicyError,
    StreamxfError,
    UnsupportedError,
    WrongKeyError,
)
from streamxf.keys import KeyRing, KeysLike, TrustLike
from streamxf.progress import Progress
from streamxf.wording import many

_WITHOUT = (
    "salvage(..., without_metadata=True) looks for the items in the data files themselves; read what that cannot "
    "check, first"
)
_MUTE = (
    "there is no metadata, and the data files are not of streamxf's writers: they do not say what they hold. Restore "
    ".metadata from a copy"
)
_NEWER = (
    "if this is the newest save: no metadata names {} here, {} among them; saves that failed may have left "
    "them, or a newer one whose .metadata is lost"
)


def salvage(
    path: str | os.PathLike[str],
    state_dict: dict[str, Any] | None = None,
    *,
    keys: KeysLike = None,
    trust: TrustLike = None,
    allow_unsigned: bool = False,
    require: Require | None = None,
    registry: ExtensionRegistry | None = None,
    weights_only: bool = True,
    safe_globals: Sequence[Any] = (),
    expect_save_id: SaveIds = None,
    partial: bool = False,
    rank: int | None = None,
    merge_ranks: bool = False,
    without_metadata: bool | Collection[str] = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Salvaged:
    """Load what verifies of a checkpoint that may be damaged, in one process, and say what does not.

    All checks of the reader hold, for each item by itself. An item of which anything does not verify is not in the
    result, and its target keeps its values; what arrives is what was saved.

    Parameters
    ----------
    path : path or str
        The checkpoint's folder, or its URL.
    state_dict : dict, optional
        Is filled in place, as by ``dcp.load``. Without it all that is there is loaded: whole tensors on the CPU, and
        objects, in a new one.
    keys, trust, allow_unsigned, require, weights_only, safe_globals
        As in `FileSystemReader`.
    registry : ExtensionRegistry, optional
        The reader's ``_extension_registry``.
    expect_save_id : str or several, optional
        The only saves that are acceptable, as ``writer.save_id`` gave them: one, or those of the ranks whose metadata
        is their own.
    partial : bool
        Whether tensors of which only some chunks verified are taken: the rest is zero, or keeps what the state dict
        had. `Salvaged.partial` names them, and `Salvaged.damaged` the boxes that are lost.
    rank : int, optional
        Whose metadata to use, where each rank has its own.
    merge_ranks : bool
        Where each rank has metadata of its own, nothing says that all are of one save. True says that you know it, and
        merges them; so does `expect_save_id`.
    without_metadata : bool or collection of str
        Where the metadata cannot be used, look for the items in the data files of streamxf's writers. You then vouch
        that no data file of the save is missing, and that nobody else could put others there: nothing else can tell.
        Files of several processes are taken together only if what is left of the metadata names them all; if not, name
        the writer ids (the 32 digits in their names) that belong to one save.
    storage_options : mapping, optional
        fsspec's, for a URL.
    progress : Progress, optional
        Is told how many stored bytes there are to read, and as they are read, by any thread. Without metadata all files
        are read twice.

    Raises
    ------
    FileNotFoundError
        If there is no checkpoint.
    MetadataError, AuthenticationError, KeyMissingError, WrongKeyError, PolicyError
        If no metadata can be used, and `without_metadata` is not given or does not help either.
    UnknownCodecError, CodecNotAllowedError, DuplicateCodecError
        If a codec is not at hand, and nothing can be loaded without it.
    ParameterError
        If an argument is not what it should be.
    """
    with open_catalog(
        path,
        keys=KeyRing.of(keys, trust, allow_unsigned),
        require=require,
        registry=registry,
        objects=Objects(weights_only, safe_globals),
        expect_save_id=expect_save_id,
        rank=rank,
        merge_ranks=merge_ranks,
        without_metadata=without_metadata,
        storage_options=storage_options,
        progress=progress,
    ) as catalog:
        filler = Filler(catalog, partial, progress)
        return filler.whole() if state_dict is None else filler.into(state_dict)


@contextmanager
def open_catalog(
    path: str | os.PathLike[str],
    *,
    keys: KeyRing,
    require: Require | None,
    registry: ExtensionRegistry | None = None,
    objects: Objects,
    expect_save_id: SaveIds,
    rank: int | None,
    merge_ranks: bool,
    without_metadata: bool | Collection[str],
    storage_options: Mapping[str, Any] | None,
    progress: Progress | None,
) -> Iterator[Catalog]:
    """What there is of a checkpoint, to be read in the block. Arguments and errors are those of `salvage`.

    Parameters
    ----------
    objects : Objects
        What becomes of objects.
    """
    if expect_save_id is not None and without_metadata:
        raise ParameterError("without_metadata= cannot find out which save it is, so expect_save_id= means nothing")
    if isinstance(without_metadata, str):
        raise ParameterError("without_metadata= is True, or a list of writer ids")
    options: dict[str, Any] = {"keys": keys, "require": require, "expect_save_id": expect_save_id}

    def session() -> Session:
        text = os.fspath(path)
        made: Session
        if "://" in text or "::" in text or storage_options:
            made = FsspecSession(text, registry, **options, **(storage_options or {}))
        else:
            made = LocalSession(text, registry, **options)
        made.treat_objects(objects)
        return made

    first = session()
    try:
        names = list_files(first.fs, first.path)
    except NotADirectoryError:
        raise UnsupportedError("this is a file, and not a checkpoint's folder", file=os.fspath(path)) from None
    ranks = sorted(int(found["rank"]) for name in names if (found := RANK_METADATA.fullmatch(name)) is not None)
    sessions: list[Session] = []
    damaged: list[Lost] = []
    failed: StreamxfError | None = None
    for one in _candidates(".metadata" in names, ranks, rank):
        try:
            sessions.append(_opened(session(), one))
        except StreamxfError as error:
            failed = failed or error
            damaged.append(Lost.of(error))
    if len(sessions) > 1 and not merge_ranks and expect_save_id is None:
        raise PolicyError(
            "each rank has metadata of its own here, and nothing says that all of them are of one save: after a crash "
            "some may be older. Pass rank= for one of them, expect_save_id= with the ids of all ranks, or "
            "merge_ranks=True if you know that they belong together",
            file=os.fspath(path),
        )
    if not sessions and not (without_metadata and any(map(OWN_FILE.fullmatch, names))):
        raise _nothing(os.fspath(path), failed, names, bool(len(keys)))
    try:
        if sessions:
            catalog = Catalog.of(sessions, damaged)
            complete = frozenset(catalog.save_ids.values()) == as_save_ids(expect_save_id)
            if ".metadata" not in names and rank is None and not complete:
                catalog.unchecked.append(UNKNOWN_RANKS)
                if not damaged and (others := _unnamed(sessions, names)):
                    catalog.unchecked.append(_NEWER.format(many(len(others), "data file"), others[0]))
        else:
            catalog = rebuild(first, names, without_metadata, damaged, progress)
        yield catalog
    finally:
        for opened in sessions or [first]:
            opened.close()


def _unnamed(sessions: Collection[Session], names: Collection[str]) -> list[str]:
    """Data files of streamxf's writers that no metadata in use names."""
    named = {place.relative_path for session in sessions for place in session.storage_data.values()}
    return sorted(name for name in names if OWN_FILE.fullmatch(name) and name not in named)


def _candidates(has_global: bool, ranks: list[int], rank: int | None) -> Sequence[int | None]:
    """Whose metadata to look at; None stands for that of all."""
    if rank is None:
        return [None] if has_global else ranks
    if has_global or rank not in ranks:
        there = "has metadata of all ranks together" if has_global else f"has that of the ranks {ranks!s:.200}"
        raise ParameterError(f"rank={rank}: the checkpoint {there}")
    return [rank]


def _opened(session: Session, rank: int | None) -> Session:
    content = session.read_metadata() if rank is None else session.read_metadata(rank=rank)
    if isinstance(content, UnreadableMetadata):
        content.raise_error()
    own = any(OWN_FILE.fullmatch(place.relative_path) for place in (content.storage_data or {}).values())
    if own and metadata_file.manifest_of(content) is None:
        raise MetadataError(
            "the metadata has lost its manifest, so nothing vouches for it: the file was cut or altered"
        )
    session.begin(content, metadata_name(rank))
    return session


def _nothing(path: str, failed: StreamxfError | None, names: Collection[str], keyed: bool) -> Exception:
    """The error where no metadata can be used."""
    if not any(OWN_FILE.fullmatch(name) for name in names):
        if failed is not None:
            return failed
        if any(TORCH_FILE.fullmatch(name) for name in names):
            return MetadataError(_MUTE, file=path)
        return FileNotFoundError(errno.ENOENT, "there is no checkpoint", path)
    if failed is None:
        failed = MetadataError("the checkpoint has no metadata", file=path)
    if isinstance(failed, IdentityError | KeyServiceError) or (isinstance(failed, KeyMissingError) and not keyed):
        return failed  # which says nothing about damage
    advice = _WITHOUT
    if isinstance(failed, KeyMissingError | WrongKeyError | PolicyError):
        advice = f"If that cannot be, .metadata is damaged: {_WITHOUT}"
    made = type(failed)(f"{failed.message}. {advice}", file=failed.file, item=failed.item, block=failed.block)
    made.__cause__ = failed
    return made
