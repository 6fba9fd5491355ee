"""Silence for what torch says of every save and load in a single process."""

from __future__ import annotations

import warnings


def quiet_torch() -> None:
    """Hide torch's remarks about a missing process group, which a single process does not need."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
