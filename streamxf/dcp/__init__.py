"""PyTorch Distributed Checkpoint over chains: writers, readers, and what makes codecs work inside torch's own.

Importing this makes every `Codec` a torch ``StreamTransformExtension``, so that torch's own isinstance checks take it
for one.
"""

from torch.distributed.checkpoint._extension import StreamTransformExtension

from streamxf.codec import Codec

StreamTransformExtension.register(Codec)  # type: ignore[type-abstract]
