"""What takes long to make, made when something of it is first used: packages, and regular expressions."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

NO_TORCH = "this needs PyTorch, which is not installed: pip install 'streamxf[torch]'"


def imported(name: str) -> Any:
    """A module; where torch is missing, which readers can do without, ImportError says what to do."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        error.msg = NO_TORCH if error.name == "torch" else error.msg
        raise


if TYPE_CHECKING:
    from re import compile as pattern

    import numpy
    import torch
    import zstandard
    from cryptography import exceptions
    from cryptography.hazmat.primitives import hashes, hpke, keywrap
    from cryptography.hazmat.primitives.asymmetric import ed25519, mldsa, mlkem, x25519
    from cryptography.hazmat.primitives.ciphers import aead
    from cryptography.hazmat.primitives.kdf import argon2, hkdf
else:

    class pattern:
        """As `re.compile`; a save needs a third of those that it imports."""

        def __init__(self, text: str | bytes, flags: int = 0) -> None:
            self._given = text, flags

        def __getattr__(self, member: str) -> Any:
            found = getattr(re.compile(*self._given), member)
            setattr(self, member, found)
            return found

    class _Package:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, member: str) -> Any:
            if "_module" not in vars(self):
                self._module = imported(self._name)
            return getattr(self._module, member)

    _PRIMITIVES = "cryptography.hazmat.primitives"
    numpy, torch, zstandard = map(_Package, ("numpy", "torch", "zstandard"))
    exceptions = _Package("cryptography.exceptions")
    hashes, hpke, keywrap = (_Package(f"{_PRIMITIVES}.{name}") for name in ("hashes", "hpke", "keywrap"))
    aead, argon2, hkdf = (_Package(f"{_PRIMITIVES}.{name}") for name in ("ciphers.aead", "kdf.argon2", "kdf.hkdf"))
    ed25519, mldsa = (_Package(f"{_PRIMITIVES}.asymmetric.{name}") for name in ("ed25519", "mldsa"))
    mlkem, x25519 = (_Package(f"{_PRIMITIVES}.asymmetric.{name}") for name in ("mlkem", "x25519"))
