"""The keys of a metadata file or of a plain file, and on what terms they are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streamxf.errors import PolicyError, UnsupportedError
from streamxf.keys import KeyProvider, SigningKey, VerifyKey
from streamxf.keys.datakey import DataKey
from streamxf.keys.entry import Entry
from streamxf.keys.envelope import Envelope
from streamxf.keys.vouchers import Vouchers


@dataclass(frozen=True)
class KeySet:
    """Wrapped data keys, and what vouches for the contents.

    Attributes
    ----------
    envelopes : tuple of Envelope
        That of the process that published, then those of other writers.
    vouchers : Vouchers
    digest : bytes
        D of the format, for which they are made. It never changes.
    """

    envelopes: tuple[Envelope, ...]
    vouchers: Vouchers
    digest: bytes


@dataclass(frozen=True)
class Opened:
    """Keys that the key `opener` has opened, and that are vouched for.

    Attributes
    ----------
    data_keys : tuple of DataKey
        One for each envelope.
    hashed : bool
        Whether a signature would cover every block.
    save_id : str
        Empty for a plain file.
    """

    keys: KeySet
    data_keys: tuple[DataKey, ...]
    opener: KeyProvider
    hashed: bool
    save_id: str = ""

    def signed_by(self, trust: Iterable[VerifyKey]) -> bool:
        """Whether one of `trust` signed the contents; raises AuthenticationError as `Vouchers.signed_by`."""
        return self.keys.vouchers.signed_by(trust, self.keys.digest)

    def change(
        self,
        wrap: Callable[[Envelope, DataKey], tuple[Entry, ...]],
        kept: tuple[Entry, ...],
        vouching: Iterable[KeyProvider] = (),
        signer: SigningKey | None = None,
    ) -> KeySet:
        """The same data keys for other recipients.

        `wrap` gives the entries that are to be in an envelope. Vouchers that are `kept` stay, and keys that are
        `vouching` make new ones, if they can. Raises ParameterError if there are no recipients, or too many;
        UnsupportedError if no signature can cover the data; and KeyServiceError.
        """
        if signer is not None and not self.hashed:
            raise UnsupportedError(
                "this was saved without a signer, so it has no hashes of its blocks, which a signature has to cover; "
                "save it again with a signer; for a checkpoint, streamxf.transcode makes a signed copy"
            )
        pairs = zip(self.keys.envelopes, self.data_keys, strict=True)
        envelopes = tuple(Envelope(envelope.dek_id, wrap(envelope, key)).checked() for envelope, key in pairs)
        signature, digest = self.keys.vouchers.signature, self.keys.digest
        made = Vouchers.make(
            digest, str(envelopes[0]), self.data_keys[0], vouching, signer, kept=kept, signature=signature
        )
        return KeySet(envelopes, made, digest)


@dataclass(frozen=True)
class Terms:
    """What someone who changes recipients has, and says; as the arguments of `rekey`."""

    trust: tuple[VerifyKey, ...]
    signer: SigningKey | None
    allow_unsigned: bool
    vouch: bool

    def may_vouch(self, opened: Opened) -> bool:
        """Whether something has shown who wrote the contents, or the caller answers for them."""
        return self.vouch or opened.opener.vouches or opened.signed_by(self.trust)

    def check(self, opened: Opened, readers: Iterable[KeyProvider], unvouched: Iterable[KeyProvider]) -> None:
        """Refuse to add `readers` who will refuse to read, and to let keys vouch for what anyone can have written.

        `unvouched` are keys that have no voucher yet. Raises PolicyError.
        """
        requiring = [key.id for key in readers if not key.vouches]
        if requiring and not (self.signer is not None or self.allow_unsigned or opened.signed_by(self.trust)):
            signature = opened.keys.vouchers.signature
            found = "not signed" if signature is None else f"signed by {signature[0]}, but that was not verified"
            raise PolicyError(
                f"it is {found}, and readers with the key {', '.join(requiring)} will require a signature that is "
                "right: pass the signer's public key as trust, or a signer, who then stands for the contents, or "
                "accept it unsigned (allow_unsigned)"
            )
        believing = [key.id for key in unvouched if key.vouches]
        if believing and not self.may_vouch(opened):
            raise PolicyError(
                "anyone who has the public key can have written this, and readers with the key "
                f"{', '.join(believing)} would take it for authentic: pass the signer's public key as trust, or "
                "answer for it (vouch) if you know where it comes from"
            )
