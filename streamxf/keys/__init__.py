"""Keys, wherever they come from, behind one protocol: `KeyProvider` wraps and unwraps data keys.

`Key` is a secret of 32 bytes. `PublicKey` and `PrivateKey` part writing from reading, and `SigningKey` and `VerifyKey`
then show who wrote. A `KeyRing` holds what a reader may use and whom it trusts.
"""

from streamxf.keys.key import Key
from streamxf.keys.location import KeyLike
from streamxf.keys.pair import PrivateKey, PublicKey
from streamxf.keys.provider import KeyProvider
from streamxf.keys.ring import KeyRing, KeysLike, TrustLike
from streamxf.keys.signing import SigningKey, VerifyKey

__all__ = [
    "Key",
    "KeyLike",
    "KeyProvider",
    "KeyRing",
    "KeysLike",
    "PrivateKey",
    "PublicKey",
    "SigningKey",
    "TrustLike",
    "VerifyKey",
]
