"""A mark for tests of whole checkpoints and of the functions that change them, until these read the new format."""

from __future__ import annotations

import pytest

# strict: whoever makes them pass removes the mark
checkpoints = pytest.mark.xfail(reason="dcp/ and what stands on it do not read the new format yet", strict=True)
