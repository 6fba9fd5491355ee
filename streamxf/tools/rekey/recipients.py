"""`Recipients`: who may read a checkpoint or a plain file, and who signed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from streamxf.tools.rekey.keyset import KeySet


@dataclass(frozen=True)
class Recipient:
    """A key that may read.

    Attributes
    ----------
    kind, id : str
        Those of the `KeyProvider`.
    """

    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.id} ({self.kind})"


@dataclass(frozen=True)
class Recipients:
    """Who may read, and who signed.

    Attributes
    ----------
    whole : tuple of Recipient
        Those for whom every data key is wrapped.
    part : tuple of Recipient
        Those for whom only some are: a change of rank-local metadata was interrupted, or the storage altered the lists
        of writers that did not publish, which nothing authenticates.
    signers : tuple of str or None
        Ids of the signers, according to the metadata; None where it is not signed.
    authenticated : bool
        Whether a key has authenticated this. Otherwise it is what the storage says, which may be false.
    verified : tuple of str
        Those among `signers` whose signature was verified with their `VerifyKey`. Without it a signature is only a
        claim.
    save_ids : tuple of str
        Which save the checkpoint is, as ``writer.save_id`` gave it; where ranks have metadata of their own, one for
        each file. Empty unless `authenticated`, and for a plain file.
    """

    whole: tuple[Recipient, ...]
    part: tuple[Recipient, ...]
    signers: tuple[str | None, ...]
    authenticated: bool
    verified: tuple[str, ...] = ()
    save_ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"recipient {recipient}" for recipient in self.whole]
        lines += [f"recipient {recipient} of a part only" for recipient in self.part]
        for signer in self.signers:
            words = "signed by" if signer in self.verified else "claims to be signed by"
            lines.append("not signed" if signer is None else f"{words} {signer}")
        lines += [f"save {save_id}" for save_id in self.save_ids]
        lines.append("authenticated" if self.authenticated else "not authenticated: it is what the storage says")
        return "\n".join(lines)

    @classmethod
    def of(cls, files: Sequence[tuple[KeySet, bool, str]], authenticated: bool) -> Self:
        """Of files: the keys of each, whether its signature was verified, and its save."""
        lists = [
            [Recipient(*entry.key) for entry in envelope.recipients]
            for keys, _, _ in files
            for envelope in keys.envelopes
        ]
        found = dict.fromkeys(recipient for readers in lists for recipient in readers)
        whole = tuple(recipient for recipient in found if all(recipient in readers for readers in lists))
        part = tuple(recipient for recipient in found if recipient not in whole)
        signed = [(keys.vouchers.signature or (None, b""))[0] for keys, _, _ in files]
        claimed = {signer for signer, (_, verified, _) in zip(signed, files, strict=True) if not verified}
        signers = tuple(dict.fromkeys(signed))
        verified = tuple(signer for signer in signers if signer is not None and signer not in claimed)
        return cls(whole, part, signers, authenticated, verified, tuple(save for _, _, save in files if save))
