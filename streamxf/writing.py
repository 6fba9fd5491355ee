"""What tools use to write checkpoints: a save, its contents, and what it says of its run; docs/api.md, "For tools"."""

from streamxf.checkpoint.publish import Pins
from streamxf.checkpoint.resumable import ResumableSave
from streamxf.checkpoint.saving import Save
from streamxf.checkpoint.sources import Content
from streamxf.format.run import RunFacts
from streamxf.stream.encoder import Load, MemorySource
from streamxf.torchsave.writing import torch_file

__all__ = ["Content", "Load", "MemorySource", "Pins", "ResumableSave", "RunFacts", "Save", "torch_file"]
