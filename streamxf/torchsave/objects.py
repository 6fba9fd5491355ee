"""`Objects`: what a load makes of objects, and of tensors that only torch can make; and framed tensors and bare items,
found and checked in what ``torch.save`` wrote of a single shard.

A planner unpickles whatever it is given, and a pickle can call anything. So the object is made here first, and the
planner gets a new serialization of it, and never the stored bytes, however its unpickler would read them.
"""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from streamxf import errors
from streamxf.budget import MAX_EXPANSION, Budget, check_expansion, most
from streamxf.buffers import flat_view
from streamxf.format.items import WITHOUT_ELEMENTS, Chunk, Place, TensorItem
from streamxf.format.limits import MAX_NDIM
from streamxf.format.values import parse_value
from streamxf.lazy import torch
from streamxf.torchsave.archive import STORAGES, Archive, NotSavedByTorch
from streamxf.torchsave.calls import StoredTensor, dtype_in
from streamxf.torchsave.check import Check, Maker, NotAllowed, by_name, chosen, lacks, needs, numbers_in, read_outline
from streamxf.torchsave.legacy import TorchFile
from streamxf.wording import some

MAX_OBJECT = 2 * 2**30
NODE_BYTES = 64  # bytes that each of what a value consists of counts for


class Objects:
    """How the objects of a checkpoint are loaded. Raises ParameterError.

    - `weights_only`: False hands the stored bytes to the planner as they are.
    - `safe_globals`: classes and functions that objects may use besides those that torch allows; as
      ``torch.serialization.add_safe_globals`` takes them.
    - `max_expansion`: how many times their stored bytes objects may take; `FREE` bytes in any case.
    """

    def __init__(
        self, weights_only: bool = True, safe_globals: Sequence[Any] = (), max_expansion: int = MAX_EXPANSION
    ) -> None:
        if not isinstance(weights_only, bool):
            raise errors.ParameterError(f"weights_only is True or False, not {weights_only!r}")
        if isinstance(safe_globals, str) or not isinstance(safe_globals, Sequence):
            raise errors.ParameterError("safe_globals is a list of classes and functions")
        if safe_globals and not weights_only:
            raise errors.ParameterError("weights_only=False allows everything, so safe_globals= would mean nothing")
        self._allowed = by_name(safe_globals) if safe_globals else {}
        self.weights_only = weights_only
        self.max_expansion = check_expansion(max_expansion)

    needs = staticmethod(needs)

    def limit(self, stored: int) -> int | None:
        """The most bytes that an object may have which takes `stored` bytes in storage; None for any number."""
        return min(MAX_OBJECT, most(stored, self.max_expansion)) if self.weights_only else None

    def budget(self) -> Budget | None:
        """What all objects of one load may take, before the first file is opened; None for any number of bytes."""
        return Budget(self.max_expansion, 0) if self.weights_only else None

    def renew(self, data: bytes, stored: int) -> bytes:
        """What a planner may be given for an object's `data`: a new serialization; as it is without `weights_only`."""
        return _saved(self.load(data, stored)) if self.weights_only else data

    def renew_at(self, place: Place, data: bytes, budget: Budget | None) -> bytes:
        """The same for what is stored at `place`: a value, for which `budget` pays, or as `renew`."""
        return _saved(self.load_at(place, data, budget=budget)) if place.span else self.renew(data, place.size)

    def load_at(self, place: Place, data: bytes, device: str | None = None, budget: Budget | None = None) -> Any:
        """What is stored at `place`: a value, for which `budget` pays, or as `load`; ContainerError if it is none."""
        if place.span is None:
            return self.load(data, place.size, device)
        value, count = parse_value(data)
        if budget is not None:
            budget.spend(NODE_BYTES * count, "the value")
        return value

    def load(self, data: bytes, stored: int, device: str | None = None) -> Any:
        """The object, which takes `stored` bytes in storage; torch is imported only where it is needed. Tensors in it
        come to `device`, by default to those that they were saved from, or the CPU in the place of one that is not
        there. Raises PolicyError if it is more than weights_only allows, MetadataError if it is a tensor, or damaged,
        and ObjectError if it cannot be made here.
        """
        if not self.weights_only:
            try:
                return torch.load(io.BytesIO(data), weights_only=False, map_location=device or AvailableDevices())
            except Exception as error:  # its pickle may run any code
                raise refusal(error, data) from error
        try:
            made, _ = self._made(Archive(io.BytesIO(data), len(data)), stored, device)
        except (NotSavedByTorch, NotAllowed) as error:
            kind = errors.NotAllowedError if isinstance(error, NotAllowed) else errors.PolicyError
            raise kind(
                f"the object was not loaded: {error}. If you trust it, name the classes and functions that it needs, "
                "safe_globals=[...] (streamxf.unsafe_globals lists those of a whole checkpoint); weights_only=False "
                "unpickles everything, which lets whoever wrote the checkpoint run code here"
            ) from None
        if isinstance(made, getattr(sys.modules.get("torch"), "Tensor", ())):
            raise errors.MetadataError("the item holds a tensor, the metadata says an object")
        return made

    def load_tensor(self, file: Any, size: int, stored: int) -> torch.Tensor:
        """What ``torch.load`` makes of a tensor's file of `size` bytes, on the CPU; always with weights_only. Raises
        PolicyError if it needs a class that is not allowed; MetadataError if ``torch.save`` did not write it, or it
        is damaged, or holds no tensor; ObjectError if it cannot be made here; and what `file` raises.
        """
        try:
            tensor, _ = self._made(Archive(file, size), stored, "cpu")
        except NotSavedByTorch as error:
            raise errors.MetadataError(f"the item holds no tensor that torch.save wrote: {error}") from None
        except NotAllowed as error:
            raise errors.NotAllowedError(
                f"the tensor was not loaded: {error}. If you trust it, import the package that defines it, or name the "
                "classes and functions that it needs, safe_globals=[...]"
            ) from None
        if not isinstance(tensor, torch.Tensor):
            raise errors.MetadataError(f"the item holds a {type(tensor).__name__}, the metadata says a tensor")
        if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type == "meta":
            kind = "nested" if tensor.is_nested else "meta" if tensor.device.type == "meta" else str(tensor.layout)
            raise errors.MetadataError(
                f"the stored tensor is of a kind that DCP does not save ({kind}): it was altered"
            )
        return tensor

    def load_shard(self, file: Any, size: int, item: TensorItem, chunk: Chunk) -> torch.Tensor:
        """The same of a shard, such as one of a subclass; MetadataError if it is not what the metadata says."""
        file.seek(0)
        loaded = self.load_tensor(file, size, chunk.place.size)
        _check_same(str(loaded.dtype).removeprefix("torch."), tuple(loaded.shape), item.dtype, chunk.shape)
        return loaded

    def unknown_in(self, file: Any, size: int, stored: int) -> list[str]:
        """What a tensor's file of `size` bytes needs besides what is allowed, once its records were compared with their
        CRC-32 and its pickle was followed. Raises MetadataError if it is damaged.
        """
        try:
            archive = Archive(file, size)
            archive.check_crcs()
            return sorted(self._followed(archive, stored)[0].unknown)
        except NotSavedByTorch as error:
            raise errors.MetadataError(f"the item holds no tensor that torch.save wrote: {error}") from None

    def _followed(self, archive: Archive, stored: int) -> tuple[Check, Any]:
        check = Check(archive.pickled, archive.sizes, stored, lambda: self._allowed | chosen())
        return check, check.load()

    @staticmethod
    def check_records(file: Any, size: int) -> Archive | None:
        """Compare the CRC-32 of every record in a file of ``torch.save``, which ``torch.load`` never does; None if
        there are none: torch writes zeros after ``torch.serialization.set_crc32_options(False)``. Raises MetadataError
        if torch did not write the file, or it is damaged.
        """
        try:
            archive = Archive(file, size)
            return archive if archive.check_crcs() else None
        except NotSavedByTorch as error:
            raise errors.MetadataError(f"the item is not as torch.save wrote it: {error}") from None

    def load_around(self, file: TorchFile, stored: int, records: Collection[str]) -> tuple[Any, ...]:
        """What a whole file holds, on the CPU, the names in it that are not allowed, and whether a part of it lacks
        what is not; always with weights_only. Tensors have elements only if these are in `records`. Raises PolicyError
        if it holds what torch.save never writes; else as `load`.
        """
        try:
            return *self._made(file.archive, stored, "cpu", records), partial(lacks, known={})
        except (NotSavedByTorch, NotAllowed) as error:
            raise errors.PolicyError(f"the object was not loaded: {error}") from None

    def _made(
        self, archive: Archive, stored: int, device: str | None, records: Collection[str] | None = None
    ) -> tuple[Any, Collection[str]]:
        """The object of an archive, as `load`; with `records` as `load_around`."""
        if (numbers := numbers_in(archive.pickled)) is not None:
            return numbers[0], ()
        check, value = self._followed(archive, stored)
        if check.unknown and records is None:
            raise NotAllowed(f"it needs {some(sorted(check.unknown))}")
        if not check.names:
            return value, ()
        making = _Making(archive, check, device or AvailableDevices(), records)
        try:
            return making.load(), check.unknown
        except Exception as error:  # torch and the classes that are allowed may raise anything
            if error is making.unread or isinstance(error, NotAllowed | errors.ObjectError):
                raise
            raise making.refusal(error) from error


def dtype_of(name: str, item: str | None = None, *, bare: bool = False) -> torch.dtype:
    """torch's dtype of a stored tensor, or of `bare` elements. Raises UnsupportedError if this torch has none such."""
    plain, _, bits = name.partition(":")
    if bare and plain in WITHOUT_ELEMENTS:
        text = f"only elements are stored, of which torch makes no tensor of {plain}: read their bytes, or numbers"
        raise errors.UnsupportedError(text, item=item)
    found = getattr(torch, plain, None)
    if not isinstance(found, torch.dtype) or (bits and found.itemsize * 8 != int(bits)):
        raise errors.UnsupportedError(lacking_text(name), item=item)
    return found


def lacking_text(dtype: str) -> str:
    return f"this torch ({torch.__version__}) has no dtype {dtype}; a newer one may have it"


class AvailableDevices(dict[Any, Any]):
    """A ``map_location``: the CPU in place of a device that is lacking; `used` says whether any but the CPU was."""

    used = False

    def get(self, location: Any, default: Any = None) -> Any:
        found = location if location != "cpu" and _is_available(location) else "cpu"
        self.used |= str(found) != "cpu"
        return found


def _is_available(location: Any) -> bool:
    try:
        device = torch.device(location)
    except (RuntimeError, TypeError):  # a kind of device that no package here knows
        return False
    module: Any = getattr(torch, device.type, None)
    if device.type == "meta" or module is None:
        return device.type == "meta"
    return bool(module.is_available()) and (device.index or 0) < module.device_count()


class _Making:
    """Makes the object of an archive, once; `unread` is the error of a read that ended it."""

    def __init__(
        self, archive: Archive, check: Check, device: str | AvailableDevices, records: Collection[str] | None
    ) -> None:
        self._archive, self._check, self._device, self._records = archive, check, device, records
        self._storages: dict[Any, Any] = {}
        self.unread: Exception | None = None

    def load(self) -> Any:
        if not any(name.startswith("torch.") for name in self._check.names):
            return Maker(self._archive.pickled, self._check).load()
        lacking = [dtype for dtype in map(dtype_in, self._check.names) if dtype and not hasattr(torch, dtype)]
        if lacking:
            raise errors.ObjectError(f"the object cannot be made here: {lacking_text(lacking[0])}")
        from streamxf.torch_private import get_restore_location, serialization_tls, validate_loaded_sparse_tensors

        serialization_tls.map_location = self._device  # which some of the functions that rebuild tensors ask for
        find = partial(self._find, get_restore_location(self._device))
        try:
            # indices of sparse tensors that lead out of them would be found only when they are used
            with torch.sparse.check_sparse_tensor_invariants(True):  # type: ignore[no-untyped-call]
                loaded = Maker(self._archive.pickled, self._check, find).load()
                validate_loaded_sparse_tensors()
                return loaded
        finally:
            serialization_tls.map_location = None

    def _find(self, restore: Any, reference: tuple[Any, ...]) -> Any:
        from streamxf.torch_private import typed_storage

        _, kind, key, location, count = reference[:5]
        place = key, kind  # of two kinds only if there are no bytes in it
        if place not in self._storages:
            dtype = getattr(torch, STORAGES[f"{kind.__module__}.{kind.__name__}"])
            if self._records is not None and f"data/{key}" not in self._records:
                empty: Any = torch.UntypedStorage(count * dtype.itemsize, device="meta")  # type: ignore[no-untyped-call]
                self._storages[place] = typed_storage(empty, dtype)
                return self._storages[place]
            made: Any = torch.UntypedStorage(count * dtype.itemsize, device="cpu")  # type: ignore[no-untyped-call]
            memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(made).numpy()
            try:
                self._archive.read_into(f"data/{key}", flat_view(memory.data))
            except Exception as error:
                self.unread = error
                raise
            if self._archive.little != (sys.byteorder == "little"):
                made.byteswap(dtype)
            self._storages[place] = typed_storage(restore(made, location), dtype)
        return self._storages[place]

    def refusal(self, error: Exception) -> Exception:
        """What it means that it could not be made. On the CPU, torch's own functions fail by what is stored alone."""
        own = sorted(name for name, allowed in self._check.names.items() if allowed is not None)
        foreign = own or getattr(self._device, "used", False) or isinstance(error, ImportError)
        return _refusal(error, self._archive, some(own or ["torch"]) if foreign else "")


def refusal(error: Exception, data: bytes) -> Exception:
    """The same of an object that any code may have made."""
    return _refusal(error, Archive(io.BytesIO(data), len(data)), "what its pickle calls")


def _refusal(error: Exception, archive: Archive, code: str) -> Exception:
    """What it means that an object could not be made by the `code` of others; without any, what is stored is wrong."""
    text = f"{type(error).__name__}: {errors.shorten(errors.text_of(error), 300)}"
    if errors.is_exhausted(error) and getattr(error, "errno", None) != errno.EOPNOTSUPP:  # which is of a place alone
        return MemoryError(f"there is no room to make the object: {text}")
    try:
        archive.check_crcs()
    except NotSavedByTorch as damage:
        return errors.MetadataError(f"the object cannot be made: {text}, and {damage}")
    if not code:
        return errors.MetadataError(f"torch cannot make what is stored: {text}")
    return errors.ObjectError(f"the object cannot be made here, by the code of {code}: {text}")


def _saved(made: Any) -> bytes:
    file = io.BytesIO()
    try:
        torch.save(made, file)
    except MemoryError:
        raise
    except Exception as error:  # whatever classes of the caller's raise
        raise errors.ObjectError(
            f"the object cannot be serialized again: {type(error).__name__}: {errors.shorten(str(error), 300)}"
        ) from error
    return file.getvalue()


_RECORDS = 64  # a tensor alone has about six


@dataclass(frozen=True, slots=True)
class Framed:
    """A plain tensor within what ``torch.save`` wrote.

    - `start`: where its first element stands in the stream.
    - `crc`: CRC-32 of its elements; 0 where torch was told to write none, or wrote that of more than these.
    """

    tensor: StoredTensor
    start: int
    crc: int


def find_framed(stream: Any, size: int, dtype: str, shape: tuple[int, ...]) -> Framed:
    """Find the plain tensor in a seekable stream of `size` bytes. Raises MetadataError if it is another tensor than the
    metadata says, or not one of torch.save at all; UnsupportedError if only torch can make it.
    """
    try:
        archive = Archive(stream, size, _RECORDS)
        found = read_outline(archive.pickled, archive.sizes)
        if not isinstance(found, StoredTensor) or not archive.little:
            archive.check_pickle()
            raise errors.UnsupportedError(
                "the item is more than the elements of a tensor: only torch and its class can make it, and only whole, "
                "as dcp.load and streamxf.Checkpoint(...)[name].read() do"
            )
        _check_same(found.dtype, found.shape, dtype, shape)
        if len(shape) > MAX_NDIM:
            raise errors.UnsupportedError(f"NumPy has no arrays of {len(shape)} dimensions: only torch can make it")
        begin, crc = archive.find(found.record) if found.extent else (0, 0)
        whole = found.extent == archive.sizes[found.record]
    except NotSavedByTorch as error:
        raise errors.MetadataError(f"the item is not what torch.save writes: {error}") from None
    start = begin + found.start if found.extent else 0  # a view without elements may begin beyond the end
    return Framed(found, start, crc if whole else 0)


def _check_same(found_dtype: str, found_shape: tuple[int, ...], dtype: str, shape: tuple[int, ...]) -> None:
    if (found_dtype, found_shape) != (dtype, shape):
        raise errors.MetadataError(
            f"the stored tensor is {found_dtype} of shape {found_shape}, the metadata says {dtype} of shape {shape}: "
            "one of them was altered, or comes from another save"
        )
