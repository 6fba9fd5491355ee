"""What tools use to read checkpoints: the terms, metadata, items and boxes of elements; docs/api.md, "For tools"."""

from streamxf.budget import MAX_EXPANSION, Budget
from streamxf.chain import Chain, ChainLike
from streamxf.checkpoint.access import Access, AccessOptions
from streamxf.checkpoint.metadata import Metadata, metadata_files, read_metadata
from streamxf.checkpoint.reading import Box, BoxReader, boxes_of
from streamxf.format.items import Chunk, Item, ObjectItem, Path, Place, TensorItem
from streamxf.keys import KeyRing, KeysLike, SignerLike, TrustLike
from streamxf.progress import Progress, Share, Shares
from streamxf.storage.reading import StoredFile

__all__ = [
    "MAX_EXPANSION",
    "Access",
    "AccessOptions",
    "Box",
    "BoxReader",
    "Budget",
    "Chain",
    "ChainLike",
    "Chunk",
    "Item",
    "KeyRing",
    "KeysLike",
    "Metadata",
    "ObjectItem",
    "Path",
    "Place",
    "Progress",
    "Share",
    "Shares",
    "SignerLike",
    "StoredFile",
    "TensorItem",
    "TrustLike",
    "boxes_of",
    "metadata_files",
    "read_metadata",
]
