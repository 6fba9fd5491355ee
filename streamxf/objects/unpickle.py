"""What torch's own weights-only unpickler makes of an archive that was checked.

``torch.load`` would open the file once more. It decides by the first four bytes whether that is a zip file, and looks
for the directory on its own; so it might unpickle something else than was checked. Here the unpickler gets the very
bytes that were checked, and each storage comes from the place that was. Torch's list of what weights-only pickles may
use besides is one for the whole process.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from streamxf.buffers import flat_view
from streamxf.errors import ParameterError
from streamxf.stream.source import ForkLock
from streamxf.torchsave.archive import Archive

_lending = ForkLock()
_lent: set[Any] = set()


@contextmanager
def lent(entries: Set[Any]) -> Iterator[None]:
    """Have `entries` on the list for a while. Other loads wait, so that none gets what was lent to another; what is on
    the list already stays there, which torch's own context manager would take off.
    """
    import torch

    if not entries:
        yield
        return
    with _lending.here():
        new = entries - frozenset(torch.serialization.get_safe_globals())
        _lent.update(new)
        try:
            with torch.serialization.safe_globals(list(new)):
                yield
        finally:
            _lent.difference_update(new)


def chosen() -> Set[str]:
    """The names that were passed to ``torch.serialization.add_safe_globals``. What torch put there itself does not
    count: importing DCP makes it allow DeviceMesh, for instance, which opens sockets when it is made.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return frozenset()
    found = frozenset(torch.serialization.get_safe_globals()) - _lent
    homes = {entry: getattr(entry[0] if isinstance(entry, tuple) else entry, "__module__", "") for entry in found}
    return names_of(entry for entry, home in homes.items() if not f"{home}.".startswith("torch."))


def names_of(entries: Iterable[Any]) -> Set[str]:
    """The names by which pickles ask for what a list of ``safe_globals`` holds; raises ParameterError."""
    return frozenset(map(_name_of, entries))


@lru_cache(1024)
def _name_of(entry: Any) -> str:
    if isinstance(entry, tuple) and len(entry) == 2 and callable(entry[0]) and isinstance(entry[1], str):
        return entry[1]
    if not callable(entry) or not hasattr(entry, "__qualname__"):
        raise ParameterError(
            f"safe_globals takes classes and functions, or pairs of one and its name; {entry!r:.80} is neither"
        )
    return f"{entry.__module__}.{entry.__qualname__}"


def unpickle(archive: Archive, map_location: str | None = None) -> Any:
    """The object of an archive, all tensors on `map_location`, by default where each was saved from; raises whatever
    torch's unpickler and reading raise.
    """
    import torch
    from torch import _weights_only_unpickler as torchs

    storages: dict[str, Any] = {}
    restore: Any = torch.serialization._get_restore_location(map_location)  # type: ignore[no-untyped-call]

    def find_storage(reference: tuple[Any, ...]) -> Any:
        _, kind, key, location, count = reference
        if key not in storages:
            dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
            made: Any = torch.UntypedStorage(count * dtype.itemsize, device="cpu")  # type: ignore[no-untyped-call]
            memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(made).numpy()
            archive.read_into(f"data/{key}", flat_view(memory.data))
            if archive.little != (sys.byteorder == "little"):
                made.byteswap(dtype)
            storages[key] = torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
                wrap_storage=restore(made, location), dtype=dtype, _internal=True
            )
        return storages[key]

    unpickler: Any = torchs.Unpickler(io.BytesIO(archive.pickled), encoding="utf-8")
    unpickler.persistent_load = find_storage
    torchs_own: Any = torch.serialization._serialization_tls
    torchs_own.map_location = map_location  # which some of the functions that rebuild tensors ask for
    try:
        # indices of sparse tensors that lead out of them would be found only when they are used
        with torch.sparse.check_sparse_tensor_invariants(True):  # type: ignore[no-untyped-call]
            loaded = unpickler.load()
            torch._utils._validate_loaded_sparse_tensors()  # type: ignore[no-untyped-call]
    finally:
        torchs_own.map_location = None
    return loaded
