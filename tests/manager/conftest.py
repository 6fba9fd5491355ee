import secrets
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from tests.dcp.s3_server import storage as s3_options


@pytest.fixture(params=["memory", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where to put runs in an object store, and fsspec's options for it."""
    name = f"runs-{secrets.token_hex(4)}"
    if request.param == "s3":
        yield f"s3://checkpoints/{name}", s3_options(request.getfixturevalue("endpoint"))
    else:
        yield f"memory://{name}", {}
        filesystem = fsspec.filesystem("memory")
        for path in filesystem.find(f"/{name}"):
            filesystem.rm_file(path)
