"""`VerifyReport`: what reading every byte of a checkpoint has found; `Findings` collect it, file by file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from streamxf import errors
from streamxf.keys import VerifyKey
from streamxf.tools.damage import Damage, resumable
from streamxf.wording import ACCESS, OLD, listed, many, printable, size_text

MAX_DAMAGED = 1000  # recorded for each file: a file full of zeros may hold a hundred thousand items
RESTORE = "restore what is damaged from another copy"
OR_SALVAGE = ", or save the rest with "
# checks that could not be made: a noun for what they are skipped for, and what is not known then
KEYED = ("encrypted item", "seals, tags and content of {}, which need a key")
UNBOUND = ("item", "whether {} not bound to their places were exchanged")
WITHOUT_CRC = ("item", "the bytes of {} saved without any checksum")
TRANSFORMED = ("item", "the bytes of {} that passed a stream transform, except that they decode")
OF_SAFETENSORS = ("tensor", "the bytes of {}, since .safetensors files have no checksums")
_SKIPPED = (UNBOUND, KEYED, TRANSFORMED, WITHOUT_CRC, OF_SAFETENSORS)
_MOST_REASONS = 20
_OPAQUE = "that {} can be loaded here, which needs "
_STALE = errors.StaleError.__name__
_COUNTS = ("files", "items", "blocks", "bytes_read", "unlisted")


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`.

    - `save_ids`: which save this is, as ``writer.save_id`` gave it; if ranks have their own metadata, one for each
      file. Not authenticated if `unchecked` says that the vouchers were not checked.
    - `files`, `items`, `blocks`: data files, items and blocks that were checked.
    - `bytes_read`: of data files and metadata.
    - `damaged`: what is damaged; with `unread`, at most 1000 for each file.
    - `unread`: what could not be read, for want of permission, say: nothing is known of it.
    - `unlisted`: how many more there were of both.
    - `unchecked`: the skipped checks, with reasons; none for streamxf's checkpoints in clear, or that the keys open, if
      nobody signed them or signers are trusted.
    - `leftovers`: files of other saves in the folder. They do no harm, and `clean` removes them.
    - `finished_here`: what an `executor` did not do, so that this process did it, and why; empty if there was nothing.
    - `advice`: what to do about both; empty if there is neither.
    - `signed_by`: the ids of trusted signers whose signatures are there and right.
    """

    save_ids: tuple[str, ...]
    files: int
    items: int
    blocks: int
    bytes_read: int
    seconds: float
    damaged: tuple[Damage, ...]
    unlisted: int
    unchecked: tuple[str, ...]
    leftovers: tuple[str, ...]
    finished_here: str = ""
    advice: str = ""
    unread: tuple[Damage, ...] = ()
    signed_by: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything could be read, and no damage was found."""
        return not (self.damaged or self.unread)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        skipped = "; ".join(printable(text) for text in self.unchecked)
        skipped = f"{many(len(self.unchecked), 'check')} skipped: {skipped}" if skipped else ""
        verdict = f"OK: no damage found ({skipped})" if skipped else "OK: no damage found"
        more = (self.unlisted, 0) if self.damaged else (0, self.unlisted)
        if not self.ok:
            counts = {"DAMAGED": len(self.damaged) + more[0], "NOT READ": len(self.unread) + more[1]}
            verdict = ", ".join(f"{what} in {many(count, 'place')}" for what, count in counts.items() if count)
        lines = [
            verdict,
            f"{many(self.files, 'data file')}, {many(self.items, 'item')}, {many(self.blocks, 'block')}, "
            f"{size_text(self.bytes_read)} in {self.seconds:.2f} s",
            *listed("save", self.save_ids),
            *(f"signed by {signer}, whom you trust" for signer in self.signed_by),
            *listed("damaged", self.damaged, more[0]),
            *listed("not read", self.unread, more[1]),
            *([skipped] if skipped and not self.ok else []),
            *listed("left over", self.leftovers),
            *resumable(self.leftovers),
            *([f"finished in this process: {printable(self.finished_here)}"] if self.finished_here else []),
            *([] if self.ok else [f"next: {self.advice}"]),
        ]
        return "\n".join(lines)


def opaque(reason: str) -> tuple[str, str]:
    """The check that torch makes the tensor that the metadata says, where it cannot be made here."""
    return "tensor", f"{_OPAQUE}{reason}"


@dataclass
class Findings:
    """What is found in one file. `skipped` counts the things that each check was skipped for; `missing` and `refused`
    are the errors of items whose codec is not installed, and that no key opens; `opened` counts those that one does.
    `worker` names the machine of a worker that may be away.
    """

    file: str
    files: int = 0
    items: int = 0
    blocks: int = 0
    bytes_read: int = 0
    unlisted: int = 0
    opened: int = 0
    damaged: list[Damage] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    missing: list[errors.StreamxfError] = field(default_factory=list)
    refused: list[errors.StreamxfError] = field(default_factory=list)
    worker: str = ""
    signed_by: list[str] = field(default_factory=list)

    @property
    def doubt(self) -> str:
        """What a worker's machine alone may be to blame for: a whole file, a package or a key; "" if there is nothing,
        or this is no worker's."""
        of_files = [each for each in self.damaged if each.unread or (each.item is None and each.block is None)]
        doubts = [*(each for each in self.blames() if isinstance(each, str)), *of_files]
        return f"{self.worker}{doubts[0]}" if doubts and self.worker else ""

    def blames(self) -> list[str | Damage]:
        """All that is wrong, of a form that can be compared."""
        return [*(f"{type(each).__name__}: {each}" for each in (*self.missing, *self.refused)), *self.damaged]

    def damage(self, error: Exception, item: str | None = None) -> Findings:
        """Note what is wrong with the file, or with an item of it; returns self."""
        Notes(self, item).error(error)
        return self

    def signed(self, what: str, signers: Collection[str], trust: Collection[VerifyKey]) -> None:
        """Note whose signatures, of `signers`, were checked: all of those that are in `trust`."""
        self.signed_by += [signer for signer in signers if signer in {key.id for key in trust}]
        if signers and not trust:
            self.unchecked.append(f"the signatures of {what}, which need a trusted signer")

    def disown(self) -> None:
        """Take what is damaged for not read, since what was read may be old; what to do about damage is left out."""
        for at, one in enumerate(self.damaged):
            if not one.unread:
                self.damaged[at] = replace(one, unread=True, error=_STALE, message=one.message.partition(". ")[0])

    def add(self, found: Findings) -> None:
        """Add what was found in the next part of the file."""
        known = [*self.damaged, *found.damaged]
        for name in (*_COUNTS, "opened", "unchecked", "skipped", "missing", "refused", "signed_by"):
            setattr(self, name, getattr(self, name) + getattr(found, name))
        self.damaged = known[:MAX_DAMAGED]
        self.unlisted += len(known) - len(self.damaged)


@dataclass
class Notes:
    """Where everything about one stream is noted; `offset` is that of a tensor's shard."""

    findings: Findings
    item: str | None = None
    offset: tuple[int, ...] | None = None
    damaged: bool = False
    _latest: Damage | None = None

    def outcome(self, block: int, error: Exception | None) -> None:
        """Note what came of a block, in the thread that collects."""
        self.findings.blocks += 1
        if error is not None:
            self.error(error, block)

    def error(self, error: Exception, block: int | None = None) -> None:
        """Note what is wrong with it, or with a block; one with the error of the block before it belongs to that. A
        codec that is not here says nothing of it, nor does a key, for all alike. Raises what is wrong with this process
        or its machine, and what ends the check.
        """
        if errors.is_exhausted(error) or isinstance(error, errors.AbortedError):
            raise error
        if isinstance(error, errors.NOT_AT_HAND):
            self.findings.missing.append(error)
            return
        if isinstance(error, errors.KeyMissingError | errors.WrongKeyError | errors.KeyServiceError):
            self.findings.refused.append(error)
        self.damaged = True
        found, known = Damage.of(error, self.item, self.findings.file, self.offset, block=block), self.findings.damaged
        last, self._latest = self._latest, found
        if last is not None and block is not None and (last.last_block, last.error) == (block - 1, found.error):
            self._latest = replace(last, last_block=block)
            if known and known[-1] is last:  # else it is one of those that are not listed
                known[-1] = self._latest
        elif len(known) < MAX_DAMAGED:
            known.append(found)
        else:
            self.findings.unlisted += 1


def together(
    reports: Mapping[str, VerifyReport], unchecked: Sequence[str], seconds: float, folders: Collection[str]
) -> VerifyReport:
    """One report of all parts of a folder, by their paths, with the paths in the folder of what they name."""
    found: dict[str, Any] = {}
    for part, one in reports.items():
        at = part if part in folders else part.rpartition("/")[0]
        before, label = f"{at}/" if at else "", f"{part}: " if part else ""
        moved = replace(
            one,
            damaged=tuple(replace(damage, file=before + (damage.file or "")) for damage in one.damaged),
            unread=tuple(replace(damage, file=before + (damage.file or "")) for damage in one.unread),
            unchecked=tuple(label + text for text in one.unchecked),
            leftovers=tuple(before + name for name in one.leftovers),
        )
        found = {name: found[name] + value if found else value for name, value in vars(moved).items()}
    advised = dict.fromkeys(one.advice for one in reports.values() if not one.ok)
    commands = ", ".join(filter(None, (text.partition(OR_SALVAGE)[2] for text in advised)))
    advice = _advice(found["damaged"], found["unread"], RESTORE + (f"{OR_SALVAGE}{commands}" if commands else ""))
    found |= {"seconds": seconds, "unchecked": (*found["unchecked"], *unchecked), "advice": advice}
    found["signed_by"] = tuple(dict.fromkeys(found["signed_by"]))
    return VerifyReport(**found)


def report_of(
    found: Sequence[Findings],
    begin: float,
    save_ids: Sequence[str] = (),
    leftovers: Sequence[str] = (),
    advice: str = RESTORE,
) -> VerifyReport:
    """Report what was found in all files since `begin`."""
    skipped: Counter[tuple[str, str]] = Counter()
    for each in found:
        skipped.update(each.skipped)
    unchecked = [text for each in found for text in each.unchecked]
    # a worker's own text is none of these
    reasons = sorted(each for each in skipped if each[0] == "tensor" and each[1].startswith(_OPAQUE))
    checks = [*_SKIPPED, *reasons[:_MOST_REASONS]]
    unchecked += [each[1].replace("{}", many(skipped[each], each[0]), 1) for each in checks if skipped[each]]
    known = [damage for each in found for damage in each.damaged]
    damaged, unread = (tuple(one for one in known if one.unread is missing) for missing in (False, True))
    return VerifyReport(
        **{name: sum(getattr(each, name) for each in found) for name in _COUNTS},
        save_ids=tuple(save_ids),
        seconds=perf_counter() - begin,
        damaged=damaged,
        unread=unread,
        unchecked=tuple(dict.fromkeys(unchecked)),
        leftovers=tuple(leftovers),
        signed_by=tuple(dict.fromkeys(signer for each in found for signer in each.signed_by)),
        advice=_advice(damaged, unread, advice),
    )


def _advice(damaged: Sequence[Damage], unread: Sequence[Damage], advice: str) -> str:
    old = any(each.error == _STALE for each in unread)
    return "; ".join([ACCESS] * bool(unread) + [OLD] * old + [advice] * bool(damaged))
