"""What tools use to read checkpoints: the terms, metadata, items and boxes of elements; docs/api.md, "For tools"."""

from streamxf.budget import Budget
from streamxf.chain import ChainLike, ChainsLike
from streamxf.checkpoint.access import Access, AccessOptions
from streamxf.checkpoint.bare import BareHeader
from streamxf.checkpoint.elements import Elements
from streamxf.checkpoint.metadata import Metadata, metadata_files, read_metadata
from streamxf.checkpoint.notes import Note
from streamxf.checkpoint.opening import ItemOpener, ItemPart
from streamxf.checkpoint.reading import Box, BoxReader
from streamxf.format.header import Kind
from streamxf.format.items import Item, Path, TensorItem
from streamxf.format.values import Nesting
from streamxf.keys import KeySet, KeysLike, SignerLike, TrustLike
from streamxf.progress import Progress, Share, Shares
from streamxf.storage.reading import StoredFile
from streamxf.stream.container import StoredStream
from streamxf.stream.plain import PlainParts
from streamxf.stream.reader import BareBlocks, Blocks, StreamReader
from streamxf.stream.scan import Scan
from streamxf.torchsave.legacy import TorchFile

__all__ = ["Access", "AccessOptions", "Budget", "KeySet", "KeysLike", "SignerLike", "TrustLike", "ChainLike"]
__all__ += ["ChainsLike", "Metadata", "metadata_files", "read_metadata", "Item", "TensorItem", "Path", "Nesting"]
__all__ += ["Note", "Progress", "Share", "Shares", "Box", "BoxReader", "Elements", "ItemOpener", "ItemPart", "Kind"]
__all__ += ["Scan", "StoredStream", "StreamReader", "Blocks", "BareBlocks", "StoredFile", "TorchFile", "BareHeader"]
__all__ += ["PlainParts"]
