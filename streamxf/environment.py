"""`install` by environment, for launchers and scripts that stay unchanged.

``streamxf_autoload.py``, which torch calls when it is imported, calls `install_from_environment` if a variable is set.
"""

from __future__ import annotations

import os
import sys

CHAIN_VARIABLE = "STREAMXF_CHAIN"
KEYS_VARIABLE = "STREAMXF_KEYS"
STRICT_VARIABLE = "STREAMXF_STRICT"
ignored = False  # whether the variables are left alone: commands have chains and keys of their own


def install_from_environment() -> None:
    """Install the chain in ``STREAMXF_CHAIN``; without it, readers alone are given the keys. Several are separated by
    semicolons: ``floatzip; embedding.*=raw``.

    ``STREAMXF_KEYS`` has locations of keys, separated by spaces. The first is for ``encrypt``, and readers try all.

    If a value cannot be used, that is said on stderr, and torch's readers and writers raise it; its writers are left
    alone if only keys were given. With ``STREAMXF_STRICT=1``, or a torch that cannot be made to refuse, it raises
    SystemExit. After an ordinary error torch advises TORCH_DEVICE_BACKEND_AUTOLOAD=0, and checkpoints lack the chain.
    """
    text, locations = os.environ.get(CHAIN_VARIABLE, ""), os.environ.get(KEYS_VARIABLE, "").split()
    if ignored or not (text or locations):
        return
    from streamxf.chain import Chains
    from streamxf.dcp.install import Installation, install
    from streamxf.errors import ParameterError, StreamxfError
    from streamxf.keys import KeyRing

    variable = KEYS_VARIABLE
    try:
        keys = KeyRing.of(locations or None)
        variable = CHAIN_VARIABLE if text else KEYS_VARIABLE
        if not text:
            Installation.for_readers(keys)
        elif not text.strip():
            raise ParameterError("it names no codecs")
        else:
            chains = Chains.chosen(Chains.by_text(text.split(";")), keys=locations[:1] or None)
            install(chains, keys=locations or None)
    except StreamxfError as error:
        what = "every save and load" if text else "every load"
        error.message = f"{variable} cannot be used: {error.message.replace(' in keys=', f' in {KEYS_VARIABLE}')}"
        if os.environ.get(STRICT_VARIABLE, "0") not in ("", "0"):
            raise SystemExit(f"streamxf: {error}") from None
        Installation.for_readers(None, error, writers=bool(text))
        print(f"streamxf: {error}. Until it is corrected or unset, {what} is refused", file=sys.stderr)
