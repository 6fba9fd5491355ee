"""Keys, wherever they are kept, behind one protocol: a `KeyProvider` wraps data keys and vouches for contents.

`Key` is a secret of 32 bytes. `PublicKey` and `PrivateKey` separate writing from reading, and `SigningKey` and
`VerifyKey` then show who wrote. An `AwsKms` stays in the service that holds it. A `KeyRing` has the keys that a reader
may use and the signers that it trusts. `read_key` and `write_key` keep keys in files.
"""

from streamxf.keys.aws import AwsKms
from streamxf.keys.envelope import KeySet
from streamxf.keys.file import read_environment, read_key, read_text, write_key
from streamxf.keys.key import Key, KeyProvider, public_id
from streamxf.keys.pair import PrivateKey, PublicKey, SigningKey, VerifyKey
from streamxf.keys.ring import (
    KeyLike,
    KeyRing,
    KeysLike,
    SignerLike,
    TrustLike,
    as_signing_key,
    find_key,
    find_provider,
    key_schemes,
)

__all__ = ["AwsKms", "Key", "KeyLike", "KeyProvider", "KeyRing", "KeySet", "KeysLike", "PrivateKey"]
__all__ += ["PublicKey", "SignerLike", "SigningKey", "TrustLike", "VerifyKey", "as_signing_key", "find_key"]
__all__ += ["find_provider", "key_schemes", "public_id", "read_environment", "read_key", "read_text", "write_key"]
