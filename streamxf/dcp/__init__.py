"""PyTorch Distributed Checkpoint over chains: writers, readers, and what makes codecs work inside torch's own.

Importing this makes every `Codec` a torch ``StreamTransformExtension`` for torch's own isinstance checks.
"""

import torch

from streamxf.codec import Codec
from streamxf.errors import UnsupportedError

try:
    from streamxf.torch_private import StreamTransformExtension
except ImportError as error:  # up to torch 2.6
    raise UnsupportedError(
        f"torch {torch.__version__} is too old: streamxf needs torch 2.7 or newer (pip install --upgrade torch)"
    ) from error

StreamTransformExtension.register(Codec)  # type: ignore[type-abstract]
