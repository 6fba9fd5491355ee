"""`verify`: read every byte of a file, or of a checkpoint's metadata and data files, and say what is damaged."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any, Unpack

from streamxf import errors
from streamxf.buffers import collector_paused
from streamxf.engine import side_by_side
from streamxf.errors import located
from streamxf.formats import huggingface
from streamxf.formats.contents import Format
from streamxf.formats.opening import is_checkpoint, kind_of, parts_of
from streamxf.places import GLOBAL, Location, Storage, made_by_saves, metadata_among, open_storage, rank_of
from streamxf.reading import Access, AccessOptions, ItemPart, Metadata, Progress, Share, read_metadata
from streamxf.tools.clean import in_use
from streamxf.tools.damage import UNKNOWN_RANKS, doubt_of
from streamxf.tools.fleet import Fleet
from streamxf.tools.verify.others import plan_file, plan_folder
from streamxf.tools.verify.reading import FileCheck, Plan, Verification, pieces_of
from streamxf.tools.verify.report import OR_SALVAGE, RESTORE, Findings, VerifyReport, report_of, together
from streamxf.wording import many, some

_NO_METADATA = (
    "the metadata is missing, so the checkpoint's contents are unknown: it was lost, or no save to this folder was "
    "published yet"
)
_UNDER_WAY = (
    "there is no checkpoint here: a save to this folder is under way, or its removal, or was killed within the last "
    "hour; or a copy left out .metadata"
)
_CHANGED = "it was removed, replaced or written to while it was checked: verify it again"
_AT_ONCE = 4  # files that fsspec reads: each by one thread, which waits for each request
_NOT_READ = (".npz", ".npy", ".keras", ".h5", ".gguf", ".msgpack")


def verify(
    path: Location | Iterable[Location],
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    **options: Unpack[AccessOptions],
) -> VerifyReport:
    """Read every byte of a checkpoint, and report which items and blocks are damaged.

    Damage is reported, as is what cannot be read, and does not raise. Workers decode blocks as in a load, and fsspec
    reads four files at a time. Besides the metadata, verify takes about 20 MiB on 2 CPUs with blocks of 1 MiB, for
    checkpoints of any size: more for larger blocks in proportion, some MiB for each further CPU, 16 MiB for each file
    that fsspec reads, and one whole item for tensor subclasses and stream transforms.

    A file that `streamxf.open` wrote is checked like a checkpoint. Other formats allow less: of a ``torch.save`` file
    the directory, the pickle and each record's CRC-32 are checked; of a ``.safetensors`` file the header alone, since
    its tensors have no checksums; of a Hugging Face folder the index and each shard. In a folder with several of these,
    such as a Trainer's checkpoint or a run, each is checked according to its format.

    With `executor`, its workers read the data files, some 256 MiB of items at a time. The report is the same. What the
    executor does not do, since a worker was killed, say, or its machine lacks a mount, a package or a key, this process
    does, and the report says so. Workers of other hosts need the same packages, and reach `path` as it is given here.

    Parameters
    ----------
    path : path, str or Storage, or several
        The checkpoint's folder or file, or its URL. Of several, there is one report, in which files have their whole
        paths; those without a checkpoint are in `unchecked`.
    keys : Key, bytes, location, several of them or a KeyRing, optional
        To decrypt. Without them all checks are made that need no key: sizes, digests, structure and the CRC of each
        block, which find accidents, but not deliberate changes.
    trust, allow_unsigned, require, expect_save_id, codecs, storage_options
        As in `Checkpoint`.
    max_expansion : int
        Limit, as a multiple of a data file's stored bytes (holes are not stored), on the bytes read from it and made by
        stream transforms; 256 MiB is always allowed. More is reported as damage.
    progress : Progress, optional
        Receives the bytes of the data files as they are read, from any thread.
    executor : concurrent.futures.Executor, optional
        What its workers receive has to be picklable: a `Storage` of your own, and `codecs`. Keys are sent to those of a
        ProcessPoolExecutor and a ThreadPoolExecutor alone. Other executors may have workers on other hosts, which open
        the keys themselves: `keys` are locations then, such as ``file:/run/secrets/checkpoint.key``.

    Raises
    ------
    NoCheckpointError, UnsupportedError
        If there is no checkpoint, or one of a kind that cannot be read here.
    KeyMissingError, WrongKeyError, KeyServiceError
        If there are keys, and none of them opens it.
    PolicyError, IdentityError
        If its protection is weaker than required, or it is another save.
    UnknownCodecError, CodecNotAllowedError, DuplicateCodecError
        If a codec is not installed, and no damage was found without it. Of several checkpoints those that need it are
        in `unchecked`, unless all do.
    ParameterError
        If an argument is invalid, or cannot be sent to the workers of `executor`.
    OSError, ForeignError
        If the storage cannot be listed. A file that cannot be read is in the report's `unread`.
    """
    access = Access.of(**options)
    named = options.get("require") is not None or access.expected_saves is not None
    paths = [path] if isinstance(path, str | os.PathLike | Storage) else [*path]
    if not paths:
        raise errors.ParameterError("path= is empty: there is nothing to verify")
    storages = [open_storage(each, storage_options).past_caches() for each in paths]
    fleet = None if executor is None else Fleet(executor, storages, access)
    places, unchecked = _places(storages, named)
    if [*places] == [""] and not unchecked:
        with fleet or nullcontext():
            report = _begin(Verification(storages[0], access, progress), named, fleet)
        return replace(report(), finished_here=fleet.lost if fleet else "")
    with located(file=storages[0].label() if len(storages) == 1 else None):
        return _verify_parts(places, storages, unchecked, access, progress, named, fleet)


def _places(storages: Sequence[Storage], named: bool) -> tuple[dict[str, Storage], list[str]]:
    """All checkpoints and files in several places, and what is not looked into. Of one place, they have their paths in
    it; it is not searched if it is a checkpoint that is `named`.
    """
    places: dict[str, Storage] = {}
    unchecked: list[str] = []
    several = len(storages) > 1
    for storage in storages:
        label = storage.label().rstrip("/")
        parts: list[str] = []
        links: list[str] = []
        with suppress(*(OSError, errors.ForeignError, errors.UnsupportedError) if several else (FileNotFoundError,)):
            parts = [] if named else parts_of(storage, links=links)  # whoever checks it says more of what fails here
        others = [name for name in storage.names(()) if name.endswith(_NOT_READ)] if parts else []
        unchecked += [f"{name}: streamxf reads no such format" for name in others]
        for part in parts or ([] if links else [""]):
            path = "/".join(filter(None, (label if several else "", part)))
            places[path] = storage.child(part) if part else storage
        inner = links if several else [link.removeprefix(f"{label}/") for link in links]
        unchecked += [f"{link}: a link to a folder, which is not followed" for link in inner]
    return places, unchecked


def _verify_parts(
    places: Mapping[str, Storage],
    given: Sequence[Storage],
    unchecked: list[str],
    access: Access,
    progress: Progress | None,
    only_dcp: bool,
    fleet: Fleet | None,
) -> VerifyReport:
    """Check each checkpoint and file in a folder. With keys, those that streamxf encrypts have to be encrypted; what
    has another format is checked as without, and listed, unless nothing else is there.
    """
    begin = perf_counter()
    strangers: set[str] = set()
    folders: set[str] = set()
    found: dict[str, VerifyReport | str] = {}
    missing: list[errors.StreamxfError] = []
    keyed = [] if access.require is None else [part for part, place in places.items() if _may_be_encrypted(place)]

    @contextmanager
    def noting(part: str) -> Iterator[None]:
        try:
            yield
        except errors.NotFetchedError as error:
            file = (error.file or places[part].name).rpartition("/")[2]
            found[part] = report_of([Findings(file).damage(error)], begin)
        except (errors.NoCheckpointError, errors.UnsupportedError, *errors.NOT_AT_HAND) as error:
            found[part] = f"{part}: {error.message}"
            missing.extend([error] if isinstance(error, errors.NOT_AT_HAND) else [])
        except (OSError, errors.ForeignError) as error:
            above, name = places[part].parent()
            vanished = isinstance(error, FileNotFoundError) and places[part] not in given
            if vanished and name not in above.names(()) and name not in above.folders():
                found[part] = f"{part}: {_CHANGED}"
                return
            folders.discard(part)  # of which nothing is known but its name
            doubted = places[part].doubted(error, missing=True)
            found[part] = report_of([Findings(places[part].name).damage(doubted)], begin)

    def take(part: str, report: Callable[[], VerifyReport]) -> None:
        with noting(part):
            found[part] = report()

    with fleet or nullcontext():
        for part, place in places.items():
            how = access
            if keyed and part not in keyed:
                strangers.add(part)
                how = Access.of(max_expansion=access.objects.max_expansion)
            with noting(part):
                if place.is_folder():  # which raises FileNotFoundError for what is listed and not there
                    folders.add(part)
                made = _begin(Verification(place, how, progress), only_dcp, fleet)
                fleet.then(partial(take, part, made)) if fleet else take(part, made)
    reports = {part: report for part in places if isinstance(report := found[part], VerifyReport)}
    unchecked += [text for part in places if isinstance(text := found[part], str)]
    if not reports:
        raise missing[0] if missing else errors.NoCheckpointError("; ".join(unchecked))
    if unkeyed := [part or "the folder's own files" for part in reports if part in strangers]:
        unchecked.append(f"who wrote {some(unkeyed)}, which cannot be encrypted")
    report = together(reports, unchecked, perf_counter() - begin, folders)
    return report if fleet is None else replace(report, finished_here=fleet.lost)


def _may_be_encrypted(place: Storage) -> bool:
    with suppress(errors.StreamxfError, OSError):
        return kind_of(place) in (Format.DCP, Format.PLAIN)
    return False


def verify_at(
    storage: Storage, access: Access, *, only_dcp: bool = True, part: tuple[int, int] = (0, 1)
) -> VerifyReport:
    """The same for streamxf's own tools. With `only_dcp`, checkpoints of other formats raise ParameterError. With
    `part`, a number and how many there are, only this part of a checkpoint's data files is read. Raises what a file
    cannot be read for, if that says nothing of its contents, such as a server out of reach.
    """
    call = Verification(storage, access, None)
    report = _begin(call, only_dcp, None, part)()
    if call.unread:
        raise call.unread[0]
    return report


def _begin(
    call: Verification, only_dcp: bool, fleet: Fleet | None, part: tuple[int, int] = (0, 1)
) -> Callable[[], VerifyReport]:
    """Make the checks of a place, or hand them out; returns what makes its report, when all of them were made."""
    storage, begin = call.storage, perf_counter()
    layout: huggingface.HubLayout | None = None
    try:
        is_folder = storage.is_folder()
        if is_folder and not is_checkpoint(storage):
            layout = huggingface.layout_of(storage.names())
    except FileNotFoundError:
        raise errors.NoCheckpointError("there is no checkpoint, and no file or folder", file=storage.label()) from None
    of_dcp = is_folder and layout is None
    if only_dcp and not of_dcp:
        raise errors.ParameterError("options for checkpoints of DCP do not apply here (require, expect_save_id)")
    look: Callable[[], object] = partial(_state_of if of_dcp else _ends_of, storage)
    if layout is not None:
        look = lambda: huggingface.layout_of(storage.names(()))  # noqa: E731
    before, label = _try(look), None if of_dcp else storage.label()
    with located(file=label):
        if of_dcp:
            checks, conclude = _plan_checkpoint(call, part)
        else:
            checks, conclude = plan_file(call) if layout is None else plan_folder(call, layout)
        if fleet is not None:
            for check in checks:
                check.submit(fleet)
        else:  # in a folder workers read, all from one file
            threads = 1 if storage.near else min(_AT_ONCE, len(checks))
            side_by_side([each.run for each in checks], threads, call.failures)

    def report() -> VerifyReport:
        with located(file=label):
            if call.failures:
                raise call.failures[0]
            about = conclude()
            if before is not None and any(each.damaged for each in call.found):
                storage.forget_listings()  # jobs remove checkpoints, and save to them
                if _try(look) not in (None, before):
                    raise errors.NoCheckpointError(_CHANGED, file=storage.label())
        if doubt := doubt_of(storage, (one for each in call.found for one in each.damaged)):
            call.unread.append(doubt)
            for each in call.found:
                each.disown()
        _note_missing(call)
        refused = [error for each in call.found for error in each.refused]
        if refused and not any(each.opened for each in call.found):
            raise refused[0]
        return report_of(call.found, begin, *about)

    return report


def _try(look: Callable[[], object]) -> object:
    """What one sees, or None where whoever checks it says more."""
    with suppress(OSError, errors.ForeignError):
        return look()
    return None


def _state_of(storage: Storage) -> object:
    """What differs once a checkpoint was removed or replaced: its metadata, or without it its data files."""
    listed = storage.names(())
    if names := metadata_among(listed):
        return names, _ends_of(storage, names[0])
    return {name for name in listed if name.endswith(".distcp")}


def _is_under_way(storage: Storage, data: Mapping[str, int | None]) -> bool:
    """Whether a process writes data, held the folder in the last hour, as removals do, or has just made a file."""
    young = [name for name, size in data.items() if size == 0]
    with suppress(FileNotFoundError):  # the folder was removed
        if storage.was_written_lately(young, or_held=True):
            return True
    return in_use(storage, data)


def _ends_of(storage: Storage, path: str = "") -> tuple[int, bytes, bytes]:
    """A file's size, beginning and end: its times and links change without it, too."""
    with storage.open(path) as file:
        size = min(file.size, 4096)
        return file.size, file.read(0, size), file.read(file.size - size)


def _plan_checkpoint(call: Verification, part: tuple[int, int]) -> Plan:
    listed = call.storage.names()
    names = metadata_among(listed)
    read = [(findings, _read(call, findings)) for findings in map(call.findings, names)]
    known = [metadata for _, metadata in read if metadata is not None]
    if unlisted := {path for each in known for path in each.files}.difference(listed):
        listed = {**call.storage.names(unlisted), **listed}  # the listing may be older than they are
    data = {name: size for name, size in listed.items() if name.endswith(".distcp")}
    if not names:
        reason = Metadata.unfinished(listed) if data else "there is no checkpoint: the folder has no .metadata"
        if reason is None and _is_under_way(call.storage, data):
            reason = _UNDER_WAY
        if reason is not None:
            raise errors.NoCheckpointError(reason, file=call.storage.label())
        call.findings(GLOBAL).damage(errors.MetadataError(_NO_METADATA))
    checks: dict[str, FileCheck] = {}
    for findings, metadata in read:
        if metadata is not None:
            _plan(call, metadata, findings, checks, listed)
    foreign = bool(checks) and bool(data) and checks.keys().isdisjoint(data)
    if foreign:
        text = (
            f"none of the data files that it names is here, but {many(len(data), 'other')}: it is of another save, or "
        )
        text += "its own files were lost. Restore the right one, or use `streamxf salvage --without-metadata`"
        call.findings(names[0]).damage(errors.MetadataError(text))
    salvage = f"streamxf salvage {shlex.quote(call.storage.label())} TARGET"
    if len(known) < len(names) or not names or foreign:
        salvage += " --without-metadata"
        checks |= {name: FileCheck(call, name, listed[name] or 0) for name in sorted(data.keys() - checks.keys())}
    beside = sorted(name for name in listed if name not in {*names, *checks} and made_by_saves(name))
    advice = f"{RESTORE}{OR_SALVAGE}`{salvage}`"
    return [*checks.values()][part[0] :: part[1]], partial(_conclude, call, names, known, beside, advice)


def _conclude(
    call: Verification, names: Sequence[str], known: Sequence[Metadata], beside: Sequence[str], advice: str
) -> tuple[Sequence[str], Sequence[str], str]:
    """Note what was not checked; returns which saves these are, what is left over beside them, and what to do."""
    last = call.findings(GLOBAL)
    save_ids = [metadata.index.save_id for metadata in known if metadata.index is not None]
    if names and names != [GLOBAL]:  # another rank's files may be all that is left of its part of the checkpoint
        for text in (*Metadata.lacking(known, map(rank_of, names)), *Metadata.mixed(known)):
            call.findings(names[0]).damage(errors.MetadataError(text))
        told = [metadata.index is not None and metadata.index.ranks is not None for metadata in known]
        if call.access.expected_saves != frozenset(save_ids) and not (told and all(told)):
            last.unchecked.append(UNKNOWN_RANKS)
        ranks = {None, *map(rank_of, names)}
        strangers = [name for name in beside if rank_of(name) not in ranks]
        beside = [name for name in beside if rank_of(name) in ranks]
        if strangers:
            last.unchecked.append(
                f"{many(len(strangers), 'file')} of ranks that have no metadata here, such as {strangers[0]}, which "
                "may be all that is left of these ranks' part of the checkpoint"
            )
    if unvouched := [each.name for each in known if each.index is not None and not each.authenticated]:
        what = unvouched[0] if len(unvouched) == 1 else f"{len(unvouched):,} metadata files"
        last.unchecked.append(f"the vouchers of {what}, which need a key")
    last.signed("the metadata", [signer for each in known for signer in each.signers], call.access.trust)
    return save_ids, beside, advice


def _read(call: Verification, findings: Findings) -> Metadata | None:
    """A metadata file as readers read it; None if it is damaged."""
    try:
        if not _check_head(call, findings) and call.access.require == "published":
            raise errors.MetadataError(
                "the metadata does not end in an index: it seems to have been cut. If torch's own writer saved "
                f"it, {call.access.way_out}"
            )
        with call.noting_unread():
            metadata = read_metadata(call.storage, findings.file, call.access, listing=True)
            metadata.check()
    except (*errors.NOT_DAMAGE, errors.UnsupportedError):
        raise
    except (errors.StreamxfError, OSError) as error:
        findings.damage(error)
        return None
    if metadata.index is None:
        findings.unchecked.append("the digest of the metadata, which only streamxf's writer makes")
    return metadata


def _check_head(call: Verification, findings: Findings) -> bool:
    """Compare the digest of what torch's readers read, and streamxf's do not; whether there is one."""
    with call.open(findings.file, share=Share(None, 0)) as file:
        findings.bytes_read += file.size
        sections = Metadata.sections_in(file)
        if sections is None:
            return False
        digest = hashlib.sha256()
        try:
            for piece in pieces_of(file, 0, sections.head_size):
                digest.update(piece)
            if digest.digest() != sections.head_digest:
                raise errors.MetadataError(
                    "the digest of the head, which is for torch's own readers, does not match: it is damaged"
                )
        except (errors.StreamxfError, OSError) as error:  # the index says what there is all the same
            findings.damage(error)
        return True


@collector_paused()
def _plan(
    call: Verification,
    metadata: Metadata,
    findings: Findings,
    checks: dict[str, FileCheck],
    listed: Mapping[str, int | None],
) -> None:
    """Add the files that a metadata file speaks of to those that are to be checked."""
    files: dict[str, list[ItemPart]] = {path: [] for path in metadata.files}  # also of those that hold none
    lost = {path for path in files if path not in listed}
    for wanted in chain.from_iterable(map(ItemPart.of, metadata.each())):
        path = next(
            filter(lost.__contains__, wanted.place.files), wanted.place.file
        )  # one line tells what goes with it
        files.setdefault(path, []).append(wanted)
    for path, items in files.items():
        if path in checks:  # read once: otherwise little metadata could have the same bytes read without end
            text = f"other metadata places items in {path!r:.120}, too; these were not checked"
            findings.damage(errors.MetadataError(text))
            continue
        facts, size = metadata.files.get(path), listed.get(path)
        if size is None:
            size = facts.size if facts is not None else max(each.place.at + each.place.size for each in items)
        items.sort(key=lambda wanted: wanted.place[1:3])
        checks[path] = FileCheck(call, path, size, metadata, items)


def _note_missing(call: Verification) -> None:
    """Note what could not be decoded; raises UnknownCodecError and the like if a codec is all that is missing."""
    missing = [error for each in call.found for error in each.missing]
    if not missing:
        return
    reasons = "; ".join(dict.fromkeys(error.message for error in missing))
    items = many(len(missing), "item")
    if any(each.damaged for each in call.found):
        call.found[-1].unchecked.append(f"the content of {items}, since {reasons}")
        return
    blocks = sum(each.blocks for each in call.found)
    compared = f"the CRCs of {many(blocks, 'block')} were compared all the same, and match"
    checked = compared if blocks else "nothing was checked"
    raise type(missing[0])(f"{reasons}. Without it {items} cannot be decoded; {checked}", file=call.storage.label())
