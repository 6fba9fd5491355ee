"""What a reader requires besides a data key that opens; docs/format/keys.md, "What a reader requires"."""

from __future__ import annotations

from typing import NamedTuple

from streamxf.errors import KeyServiceError, PolicyError
from streamxf.keys.provider import KeyProvider
from streamxf.keys.signing import VerifyKey
from streamxf.keys.vouchers import Vouchers


class Claim(NamedTuple):
    """What is stored with a wrapped data key: vouchers for a digest; or else why there are none, and what to do."""

    vouchers: Vouchers | None = None
    digest: bytes = b""
    unsigned: str = "it is not signed"
    cure: str = "have it saved with a signer"

    def check_signature(
        self,
        key: KeyProvider,
        trust: tuple[VerifyKey, ...],
        allow_unsigned: bool,
        unanswered: KeyServiceError | None,
    ) -> None:
        """Check the signature, if one is required for what `key` opened; `unanswered` is why another key did not.

        Raises PolicyError if it is missing or a stranger's, and AuthenticationError if it is wrong.
        """
        if key.vouches and not trust:
            return
        if self.vouchers is None or self.vouchers.signature is None:
            if allow_unsigned:
                return
            found, cure = self.unsigned, f"{self.cure}, or accept it unsigned (allow_unsigned)"
        else:
            # allow_unsigned= beside trust= accepts a missing signature, but not a stranger's
            if self.vouchers.signed_by(trust, self.digest) or (allow_unsigned and not trust):
                return
            found = f"it is signed by {self.vouchers.signature[0]}, who is not trusted"
            cure = "if you trust that writer, pass the signer's public key as trust"
        if key.vouches:
            found += ", and since signers are trusted, one of them has to sign"
            cure += f", or trust no signer: the key {key.id} vouches for the contents"
        else:
            found += ", and anyone who has the public key can have written it"
        raise PolicyError(
            f"{found}; {cure}. A KeyRing holds keys and trusted signers together"
        ) from unanswered  # that service might have vouched


NO_INDEX = Claim(
    unsigned="a checkpoint without an index cannot be signed", cure="save it with streamxf.FileSystemWriter"
)
PIPE = Claim(unsigned="in a pipe, the signature comes last", cure="open a file that can seek")
