"""`Recipients`, who may read a checkpoint or a plain file and who signed it; and on what terms the keys are changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from streamxf.errors import PolicyError, UnsupportedError
from streamxf.keys import KeyProvider, KeyRing, SigningKey, VerifyKey, as_signing_key
from streamxf.reading import KeySet, SignerLike

Key = tuple[str, str]  # the kind and id of one


def without(keys: Iterable[KeyProvider], there: Collection[Key]) -> tuple[KeyProvider, ...]:
    """Those of `keys` that are not there."""
    return tuple(key for key in keys if (key.kind, key.id) not in there)


@dataclass(frozen=True)
class Opened:
    """Keys that the key `opener` has opened, and that are vouched for."""

    keys: KeySet
    data_keys: tuple[Any, ...]  # one for each envelope
    opener: KeyProvider
    signable: bool  # whether there are digests, which a signature covers
    save_id: str = ""  # of a checkpoint

    def signed_by(self, trust: Iterable[VerifyKey]) -> bool:
        return self.keys.vouchers.signed_by(trust, self.keys.digest)

    def verified(self, trust: Iterable[VerifyKey]) -> list[str]:
        """The ids of those among `trust` who signed."""
        return [key.id for key in trust if self.signed_by([key])]


@dataclass(frozen=True)
class Terms:
    """What someone who changes recipients has, and says; as the arguments of `rekey`."""

    trust: tuple[VerifyKey, ...]
    signer: SigningKey | None
    allow_unsigned: bool
    vouch: bool

    @classmethod
    def of(cls, ring: KeyRing, signer: SignerLike | None, vouch: bool) -> Self:
        return cls(ring.trust, None if signer is None else as_signing_key(signer), ring.allow_unsigned, vouch)

    def may_vouch(self, opened: Opened) -> bool:
        """Whether something has shown who wrote the contents, or the caller answers for them."""
        return self.vouch or opened.opener.vouches or opened.signed_by(self.trust)

    def signer_of(self, opened: Opened) -> SigningKey | None:
        """The signer, if any; raises UnsupportedError if it cannot sign these contents."""
        if self.signer is not None and not opened.signable:
            raise UnsupportedError(
                "this was saved without a signer, so it has no digests, which a signature has to cover; "
                "sign it first, as `streamxf sign` does with a checkpoint; save a file again with a signer"
            )
        return self.signer

    def check(self, opened: Opened, readers: Iterable[KeyProvider], unvouched: Iterable[KeyProvider]) -> None:
        """Refuse to add `readers` who will refuse to read, and to let keys vouch for what anyone can have written.

        `unvouched` are keys that have no voucher yet. Raises PolicyError.
        """
        requiring = [key.id for key in readers if not key.vouches]
        if requiring and not (self.signer is not None or self.allow_unsigned or opened.signed_by(self.trust)):
            signers = ", ".join(opened.keys.signers)
            found = f"signed by {signers}, but that was not verified" if signers else "not signed"
            raise PolicyError(
                f"it is {found}, and readers with the key {', '.join(requiring)} will require a signature that is "
                "right: pass the signer's public key (trust), or a signer, who then stands for the contents (signer), "
                "or accept it unsigned (allow_unsigned)"
            )
        believing = [key.id for key in unvouched if key.vouches]
        if believing and not self.may_vouch(opened):
            raise PolicyError(
                "anyone who has the public key can have written this, and readers with the key "
                f"{', '.join(believing)} would take it for authentic: pass the signer's public key (trust), or "
                "answer for it (vouch) if you know where it comes from"
            )


@dataclass(frozen=True)
class Recipient:
    """A key that may read, by the kind and id of its `KeyProvider`."""

    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.id} ({self.kind})"


@dataclass(frozen=True)
class Recipients:
    """Who may read, and who signed.

    - `whole`: those for whom every data key is wrapped.
    - `part`: those for whom only some are: a change of rank-local metadata was interrupted, or the storage altered the
      lists of writers that did not publish, which are not authenticated.
    - `signers`: ids of the signers, according to the metadata; None if it is not signed.
    - `authenticated`: whether a key has authenticated this. Otherwise it is the storage's claim, which may be false.
    - `verified`: those among `signers` whose signature their `VerifyKey` verified; else it is only a claim.
    - `save_ids`: which save the checkpoint is, as ``writer.save_id`` gave it; if ranks have their own metadata, one for
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
    def of(cls, files: Sequence[tuple[KeySet, Collection[str], str]], authenticated: bool) -> Self:
        """Of files: the keys of each, whose signatures were verified, and its save."""
        lists = [[Recipient(*key) for key in readers] for keys, _, _ in files for readers in keys.readers]
        found = dict.fromkeys(recipient for readers in lists for recipient in readers)
        whole = tuple(recipient for recipient in found if all(recipient in readers for readers in lists))
        part = tuple(recipient for recipient in found if recipient not in whole)
        signed = [(signer, verified) for keys, verified, _ in files for signer in (keys.signers or (None,))]
        claimed = {signer for signer, verified in signed if signer not in verified}
        signers = tuple(dict.fromkeys(signer for signer, _ in signed))
        verified = tuple(signer for signer in signers if signer is not None and signer not in claimed)
        return cls(whole, part, signers, authenticated, verified, tuple(save for _, _, save in files if save))
