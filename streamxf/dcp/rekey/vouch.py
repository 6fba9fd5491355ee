"""Who vouches for a data key that is to be wrapped for others, so that these do not believe more than was shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamxf.errors import AuthenticationError, KeyMissingError, KeyServiceError, PolicyError, WrongKeyError
from streamxf.keys import KeyProvider, KeyRing, SigningKey, VerifyKey
from streamxf.keys.envelope import Envelope


@dataclass(frozen=True)
class Terms:
    """What somebody who changes recipients has, and says.

    Attributes
    ----------
    keys : tuple of KeyProvider
        Those that may have opened the data keys.
    trust : tuple of VerifyKey
        Whose signature counts.
    signer : SigningKey or None
        Signs the data keys anew.
    allow_unsigned : bool
        Whether readers who ask for a signature may get a checkpoint without one.
    vouch : bool
        Whether he answers for data keys that anybody can have made.
    """

    keys: tuple[KeyProvider, ...]
    trust: tuple[VerifyKey, ...]
    signer: SigningKey | None
    allow_unsigned: bool
    vouch: bool

    def signed(self, envelope: Envelope) -> tuple[str, bytes] | None:
        """The signature that is to stand in the envelope."""
        return envelope.signature if self.signer is None else (self.signer.id, self.signer.sign(envelope.dek_id))

    def check(self, envelope: Envelope, new: Iterable[KeyProvider]) -> None:
        """Refuse to wrap for `new` what they would refuse to read, and what they would take for authentic on no ground.

        Parameters
        ----------
        envelope : Envelope
            As it was found.
        new : iterable of KeyProvider
            Those who were not able to read before.

        Raises
        ------
        PolicyError
        """
        new = tuple(new)
        verified = verified_signer(envelope, self.trust) is not None
        asking = [key.id for key in new if not key.authenticates_writer]
        if asking and not (verified or self.signer is not None or self.allow_unsigned):
            found = "not signed" if envelope.signature is None else f"signed by {envelope.signature[0]}, as it says"
            raise PolicyError(
                f"the checkpoint is {found}, and readers with the key {', '.join(asking)} will ask for a signature "
                "that is right: pass the signer's VerifyKey in trust=, or signer=, and so vouch for the checkpoint, or "
                "allow_unsigned=True"
            )
        believing = [key.id for key in new if key.authenticates_writer]
        if believing and not (verified or self.vouch or self._authentic(envelope)):
            raise PolicyError(
                "anybody who has the public key can have written this checkpoint, and readers with the key "
                f"{', '.join(believing)} would take it for authentic: pass the signer's VerifyKey in trust=, or "
                "vouch=True if you know where the checkpoint comes from"
            )

    def _authentic(self, envelope: Envelope) -> bool:
        """Whether a key opens it that shows who wrote it."""
        showing = [key for key in self.keys if key.authenticates_writer]
        if not showing or len(showing) == len(self.keys):  # one of them opened it
            return bool(showing)
        try:
            KeyRing(showing).unwrap(envelope.fragment)
        except (KeyMissingError, WrongKeyError, KeyServiceError):
            return False
        return True


def verified_signer(envelope: Envelope, trust: Iterable[VerifyKey]) -> str | None:
    """The id of who signed, if it is one of `trust`, and the signature is right."""
    if envelope.signature is None:
        return None
    signer, signature = envelope.signature
    for key in trust:
        if key.id == signer:
            try:
                key.verify(signature, envelope.dek_id)
            except AuthenticationError:
                continue
            return signer
    return None
