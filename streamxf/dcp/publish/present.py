"""Whether everything that a save is about to name is there."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from streamxf.dcp.metadata.manifest import FileFacts
from streamxf.dcp.places import local_path
from streamxf.dcp.publish.listing import list_files
from streamxf.errors import AbortedError, ContainerError


def check_present(
    filesystem: Any, folder: str | os.PathLike[str], files: Mapping[str, FileFacts], elsewhere: Collection[str]
) -> None:
    """Refuse to publish a save some of whose files have gone, or are not as long as they were written.

    Parameters
    ----------
    files : mapping of str to FileFacts
        The manifest's.
    elsewhere : collection of str
        Those that other hosts wrote. Where the folder is each host's own, which people copy together later, all of a
        host's files may be missing here.

    Raises
    ------
    AbortedError
        If files are missing: another save to this folder has been published meanwhile, and removed them.
    ContainerError
        If one is shorter or longer than what was written.
    """
    found = list_files(filesystem, folder)
    missing = [path for path in files if path not in found]
    if missing and local_path(filesystem, folder) is not None:
        seen = {files[path].writer for path in files if path in found}
        missing = [path for path in missing if path not in elsewhere or files[path].writer in seen]
    if missing:
        raise AbortedError(
            f"{len(missing)} of the {len(files)} files of this save are gone, {missing[0]} among them: another save to "
            "this folder was published meanwhile, or somebody cleaned it up. This one was not published, and what is "
            "there stays as it is. Save into a folder of its own",
            file=os.fspath(filesystem.concat_path(folder, missing[0])),
        )
    for path, facts in files.items():
        size = found.get(path)
        if size is not None and size != facts.size:
            raise ContainerError(
                f"the file has {size} bytes, and {facts.size} were written to it: the storage lost some of them, or "
                "another program writes to it. The save was not published, and what is there stays as it is",
                file=os.fspath(filesystem.concat_path(folder, path)),
            )
