"""`install` by environment, for launchers and scripts that are not to be changed.

``streamxf_autoload.py``, which torch calls when it is imported, calls `install_from_environment` if ``STREAMXF_CHAIN``
is set.
"""

from __future__ import annotations

import os

CHAIN_VARIABLE = "STREAMXF_CHAIN"
KEYS_VARIABLE = "STREAMXF_KEYS"


def install_from_environment() -> None:
    """Install the chain in ``STREAMXF_CHAIN``.

    ``STREAMXF_KEYS`` has locations of keys, separated by spaces. The first is for ``encrypt``, and readers try all.
    Raises as `install`: torch then cannot be imported, rather than checkpoints be saved without the chain.
    """
    text = os.environ[CHAIN_VARIABLE]
    from streamxf.chain import Chain
    from streamxf.dcp.install import install
    from streamxf.errors import ParameterError, StreamxfError

    locations = os.environ.get(KEYS_VARIABLE, "").split()
    try:
        if not text.strip():
            raise ParameterError("it names no codecs")
        install(Chain.parse(text, locations[:1] or None), keys=locations or None)
    except StreamxfError as error:
        error.message = f"{CHAIN_VARIABLE} is set, and could not be installed: {error.message}"
        raise
