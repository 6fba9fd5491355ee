"""`OpenFiles`: files that are being read, of which a bounded number is kept open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from streamxf.checkpoint.storage import StoredFile

# Tensors of many ranks lie in the files of all of them; what fsspec opens may hold much of a file ahead.
_LOCAL, _REMOTE = 256, 8


class OpenFiles:
    """Opens files by name, and closes the one that was used least recently when there are too many.

    A file may be closed when others are opened, but not while blocks of it are under way.
    """

    def __init__(self, open_file: Callable[[str], AbstractContextManager[StoredFile]], *, local: bool) -> None:
        self._open = open_file
        self._most = _LOCAL if local else _REMOTE
        self._files: OrderedDict[str, tuple[StoredFile, ExitStack]] = OrderedDict()

    def __getitem__(self, name: str) -> StoredFile:
        """The file, open; raises what opening it does."""
        if (known := self._files.get(name)) is not None:
            self._files.move_to_end(name)
            return known[0]
        while len(self._files) >= self._most:
            _, (_, stack) = self._files.popitem(last=False)
            stack.close()
        stack = ExitStack()
        opened = stack.enter_context(self._open(name))
        self._files[name] = opened, stack
        return opened

    def close(self) -> None:
        """Close all of them."""
        while self._files:
            _, (_, stack) = self._files.popitem()
            stack.close()
