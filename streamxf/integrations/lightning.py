"""`ChainCheckpointIO`: checkpoints of Lightning's Trainer and Fabric, which are files of ``torch.save``, in a chain."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from streamxf.errors import ParameterError, StreamxfError, escaped
from streamxf.lazy import torch
from streamxf.manager.listing import Run
from streamxf.manager.pins import who_needs
from streamxf.places import open_storage
from streamxf.reading import ChainLike, KeysLike
from streamxf.stream.plain import ChainFiles
from streamxf.wording import some

_LOADERS = (  # modules that look up torch.load's wrapper under the name pl_load
    "lightning.pytorch.core.saving",
    "lightning.fabric.plugins.io.torch_io",
    "pytorch_lightning.core.saving",
    "lightning_fabric.plugins.io.torch_io",
)

_log = logging.getLogger(__name__)


def packages(*names: str) -> list[str]:
    """Lightning comes under two names, whose classes differ, and it checks by isinstance for its own: those that the
    program has imported, and as long as there are none, those that are installed.
    """
    present = [name for name in names if name in sys.modules]
    return present or [name for name in names if find_spec(name.partition(".")[0]) is not None]


class ChainCheckpointIO:
    """Lightning's ``CheckpointIO``: ``Trainer(plugins=[ChainCheckpointIO(chain="zstd+encrypt", keys=key)])``.

    ``AsyncCheckpointIO`` can wrap it. Files have the format of `streamxf.open`, so a model is loaded by
    ``Model.load_from_checkpoint(streamxf.open(path, keys=key))``.

    Parameters
    ----------
    chain : Chain, codecs or str
        As in `streamxf.open`.
    keys : Key, location, several of them or a KeyRing
        The key for ``encrypt`` in a chain's text form, and for loading; by default those of the chain that can read. If
        the chain encrypts, only encrypted files load; otherwise Lightning's own checkpoints load, too.

    Attributes
    ----------
    saved : tuple of str and str, optional
        The path of the last save, and the SHA-256 of the file in hexadecimal.

    Raises ChainError, ParameterError if the arguments do not fit.
    """

    def __init__(self, chain: ChainLike | None = None, *, keys: KeysLike = None) -> None:
        self._files = ChainFiles(chain, keys=keys)
        self.saved: tuple[str, str] | None = None
        for name in packages("lightning.fabric", "lightning_fabric"):
            import_module(f"{name}.plugins.io.checkpoint_io").CheckpointIO.register(type(self))
        for name in _LOADERS:
            if name in sys.modules:
                _explain(sys.modules[name])

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Save under `path`, a folder's file or a URL, where the whole checkpoint appears or nothing does."""
        if storage_options is not None:
            raise ParameterError("ChainCheckpointIO takes no storage_options")
        with self._files.write(path) as (file, digest):
            torch.save(checkpoint, file)
        self.saved = os.fspath(path), digest.hexdigest()

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = "cpu", weights_only: bool | None = None
    ) -> Any:
        """Load what was saved under `path`; `map_location` and `weights_only` are those of ``torch.load``."""
        with self._files.read(path) as file:
            return torch.load(file, map_location, weights_only=weights_only)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove what is there, if anything is; of a link, the link. A folder stays, with a warning, while checkpoints
        beside it need its files.
        """
        place = open_storage(path)
        folder, name = place.parent()
        run = Run.at(folder, unverified=True)
        if not folder.is_link(name) and (needing := who_needs(run, run.folder(name))):
            text = f"{place.label()} stays: {some(needing)} needs it: `streamxf consolidate` ends that"
            _log.warning("%s", escaped(text))
        else:
            place.remove_all()

    def teardown(self) -> None:
        """Lightning calls this at the end; nothing is held."""


def _explain(loader: Any) -> None:
    """Let what loads without the plugin say what to do about a file that the plugin has written."""
    load = loader.pl_load
    if hasattr(load, "__wrapped__"):
        return

    @wraps(load)
    def pl_load(path_or_url: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(path_or_url, *args, **kwargs)
        except Exception as error:
            if isinstance(path_or_url, str | os.PathLike):
                with suppress(OSError, StreamxfError), open_storage(path_or_url).open() as file:
                    if file.is_plain:
                        error.add_note(
                            "ChainCheckpointIO wrote this file: give the Trainer or Fabric that plugin, and "
                            "load_from_checkpoint, which uses no plugins, streamxf.open(path, keys=...)"
                        )
            raise

    loader.pl_load = pl_load
