"""Whether metadata describes whole items: chunks that tile their tensors, and a place inside the checkpoint for each.

DCP copies what the chunks offer and asks no further: where one is missing, the target silently stays as it was.
"""

from __future__ import annotations

from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from streamxf.collector import collector_paused
from streamxf.dcp.metadata.manifest import Manifest, check_path
from streamxf.dcp.metadata.tiling import check_apart, check_tiles
from streamxf.errors import MetadataError

_SHOWN = 200


def check_items(content: Metadata, rank: int | None) -> None:
    """Check chunks and places of `content`, whose attributes have the types that DCP gives them.

    Parameters
    ----------
    rank : int or None
        Whose rank-local metadata it is; its chunks need not be all of a tensor.

    Raises
    ------
    MetadataError
        With the item that is not whole.
    """
    check = check_tiles if rank is None else check_apart
    with collector_paused():
        places = {(index.fqn, index.offset) for index in content.storage_data or ()}
        for name, item in content.state_dict_metadata.items():
            if not isinstance(item, TensorStorageMetadata):
                if (name, None) not in places:
                    raise _no_place(name)
                continue
            chunks = [(chunk.offsets, chunk.sizes) for chunk in item.chunks]
            try:
                check(item.size, chunks)
            except MetadataError as error:
                raise MetadataError(
                    f"the metadata of a tensor of {list(item.size)!s:.80} is wrong: {error.message}",
                    item=name[:_SHOWN],
                ) from None
            for offsets, _ in chunks:
                if (name, offsets) not in places:
                    raise _no_place(name)


def check_places(content: Metadata, manifest: Manifest | None) -> None:
    """Check that items lie in files of the checkpoint.

    Raises
    ------
    MetadataError
        If a path leads elsewhere, or to a file that the manifest does not list.
    """
    known: set[str] = set()
    for index, place in (content.storage_data or {}).items():
        path = place.relative_path
        if path in known:
            continue
        known.add(check_path(path))
        if manifest is not None and path not in manifest.files:
            raise MetadataError(
                f"the metadata places an item in {path!r:.120}, which the manifest does not list",
                item=index.fqn[:_SHOWN],
            )


def _no_place(name: str) -> MetadataError:
    return MetadataError("the metadata does not say where the item is stored", item=name[:_SHOWN])
