"""Keys: `Key` is one key-encryption key, `KeyRing` the keys that a reader may use; data keys are drawn and wrapped
here.
"""

from streamxf.keys.key import Key, KeyLike
from streamxf.keys.ring import KeyRing, KeysLike

__all__ = ["Key", "KeyLike", "KeyRing", "KeysLike"]
