"""`tune`: which chain fits a given state dict, checkpoint or file, and a given storage."""

from __future__ import annotations

import math
import numbers
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from streamxf.chain import Chain, ChainLike
from streamxf.checkpoint.access import Access
from streamxf.codec import Codec
from streamxf.codecs.encrypt import Encrypt
from streamxf.engine import worker_count
from streamxf.errors import NoCheckpointError, ParameterError, UnsupportedError
from streamxf.formats.opening import open_source
from streamxf.keys import KeyRing, KeysLike
from streamxf.progress import Progress
from streamxf.storage.opening import Location, open_storage
from streamxf.storage.storage import Storage
from streamxf.tuning.estimate import Recommendation, choose, estimate, measure, reason
from streamxf.tuning.sample import RawFile, Sampled, StoredTensors, take_sample

#: What is tried unless the caller names candidates.
CANDIDATES = ("", "lz4", "zstd:level=-1", "zstd:level=1", "zstd:level=3", "zstd:level=9", "floatzip")


def tune(
    source: Mapping[str, Any] | Location,
    *,
    bandwidth: float,
    chains: Iterable[ChainLike] | None = None,
    keys: KeysLike = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Recommendation:
    """Try chains on a sample of the data, and recommend one for storage of a given bandwidth.

    About 24 blocks of 1 MiB, spread evenly over the data, are encoded and decoded in one thread, and compared bit for
    bit. Save and load of the whole are estimated from that: coding is shared by `workers` and overlaps writing and
    reading, so the slower one of the two counts. The recommended chain is the smallest of those whose save is within 5%
    of the fastest. That takes a few seconds, and a fixed amount of memory, except that tensors which went through a
    stream transform are decoded whole, one at a time.

    Parameters
    ----------
    source : mapping, path, str or Storage
        A state dict: all tensors in it, on any device; of sharded ones the shards on this rank. Or a checkpoint of any
        format that `streamxf.inspect` knows: a folder, a file, or the URL of one. Or any other file, as bytes.
    bandwidth : float
        Of the storage, in bytes per second, for this process: ``2e9`` is 2 GB/s. docs/tuning.md says how to measure it.
    chains : iterable of chain, optional
        The candidates, each a Chain, codecs, one codec or a string. The default is no chain, `LZ4`, `ZStandard` at
        levels -1, 1, 3 and 9, and `FloatZip`, each followed by `Encrypt` if there is a key. Either all of them encrypt
        or none does.
    keys : Key, bytes, several of them or a KeyRing
        For an encrypted checkpoint, and for `Encrypt` in the default candidates and ``encrypt`` in strings, where it
        must be a single one.
    workers : int, optional
        Threads that share the coding; by default the CPUs that this process may run on.
    storage_options : mapping, optional
        fsspec's, for a URL.
    progress : Progress, optional
        Receives the sample's bytes each time they are coded.

    Raises
    ------
    ParameterError, ChainError
        If an argument is invalid, or the source is empty; the message says what to do.
    CodecError
        If a candidate fails, or does not reproduce its input.
    OSError, StreamxfError
        If the source cannot be read, as for `FileSystemReader`.

    Notes
    -----
    Not in the estimate: fsync, opening and closing files, ``.metadata``, what each of many small tensors costs besides
    its bytes, copies from a GPU, and workers that share the memory's bandwidth or a core. It compares chains; what a
    save really takes is in its `SaveReport`.
    """
    real = isinstance(bandwidth, numbers.Real) and not isinstance(bandwidth, bool)
    if not real or not math.isfinite(bandwidth) or bandwidth <= 0:
        raise ParameterError(
            f"bandwidth={bandwidth!r}: it is the storage's bandwidth in bytes per second, such as 2e9 for 2 GB/s; "
            "docs/tuning.md says how to measure it"
        )
    candidates = _candidates(chains, keys)
    threads = worker_count() if workers is None else workers
    if type(threads) is not int or threads < 1:
        raise ParameterError(f"workers={workers!r}: it is a whole number from 1")
    sampled = source_of(source, keys, storage_options)
    blocks = take_sample(sampled)
    if not blocks:
        raise ParameterError(
            "the source has no tensor with data in it, or is an empty file: there is nothing to measure. Pass what "
            "will be saved, such as model.state_dict()"
        )
    measured = measure(candidates, blocks, progress)
    estimates = tuple(estimate(each, sampled.parts, float(bandwidth), threads) for each in measured)
    chosen = choose(estimates)
    size, why = sum(len(block.data) for block in blocks), reason(estimates, chosen)
    raw_bytes = estimates[chosen].raw_bytes
    return Recommendation(candidates[chosen], estimates, raw_bytes, size, float(bandwidth), threads, why)


def source_of(source: Any, keys: KeysLike, storage_options: Mapping[str, Any] | None = None) -> Sampled:
    """The source that `tune` was given; raises as `tune` does."""
    if isinstance(source, Mapping):
        from streamxf.tuning.state import StateDict  # needs torch

        return StateDict(source)
    if not isinstance(source, str | os.PathLike | Storage):
        raise ParameterError(
            f"tune takes a state dict, a checkpoint's folder or a file, not {type(source).__name__}; of a model, pass "
            "model.state_dict()"
        )
    try:
        return StoredTensors(open_source(open_storage(source, storage_options), Access.of(keys)))
    except (NoCheckpointError, UnsupportedError):
        if isinstance(source, Storage) or not os.path.isfile(source):
            raise
        return RawFile(os.fspath(source))


def _candidates(chains: Iterable[ChainLike] | None, keys: KeysLike) -> list[Chain]:
    if isinstance(chains, str | Codec | Chain):
        raise ParameterError("chains= is a list of candidates, each a chain of its own: chains=[[FloatZip()], 'zstd']")
    if chains is None:
        ring = KeyRing.of(keys)
        if len(ring) > 1:
            raise ParameterError(
                f"keys= holds {len(ring)} keys, so it is not clear which one to encrypt with; name the candidates: "
                "chains=[[FloatZip(), Encrypt(key)], ...]"
            )
        return [Chain([*Chain.parse(text), *map(Encrypt, ring)]) for text in CANDIDATES]
    candidates = [Chain.of(chain, keys=keys) for chain in chains]
    if not candidates:
        raise ParameterError("chains= is empty; name at least one candidate, or leave it out")
    for text, count in Counter(map(str, candidates)).items():
        if count > 1:
            raise ParameterError(f"the candidate {text or 'no chain'!r} is listed twice in chains=")
    if len({chain.encryption is None for chain in candidates}) > 1:
        raise ParameterError(
            "some candidates encrypt and others do not; only their cost would be compared, and the encryption lost. "
            "To encrypt, end each of them with Encrypt: chains=[[FloatZip(), Encrypt(key)], [LZ4(), Encrypt(key)]]"
        )
    return candidates
