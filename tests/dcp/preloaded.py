"""What the process imports last whose forked copies are ranks. Frozen, all stays shared when they collect garbage."""

# ruff: noqa: F401
import gc

import cryptography.hazmat.primitives.ciphers.aead
import torch._dynamo  # for DTensors and optimizers

import streamxf.codecs.floatzip
from streamxf import CheckpointManager, FileSystemReader, FileSystemWriter, FsspecReader, FsspecWriter, install

gc.collect()
gc.freeze()
