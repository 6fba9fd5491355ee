"""Which file an access by position reads."""

import os
from typing import Any


def name_of(access: Any) -> str:
    """The path of a local file, below whatever watches its reads."""
    while hasattr(access, "_access"):
        access = access._access
    return os.readlink(f"/proc/self/fd/{access._file.fileno()}")
