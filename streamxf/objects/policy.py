"""`Objects`: what a load makes of objects, and of tensors that only torch can make.

A planner unpickles whatever it is given, and a pickle can call anything. So the object is made here first, and the
planner gets a new serialization of it. It never sees the stored bytes, so nothing depends on how its unpickler would
read them.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streamxf.descriptor import shorten
from streamxf.errors import MetadataError, ParameterError, PolicyError, StreamxfError
from streamxf.objects.unpickle import unpickle
from streamxf.proportion import MAX_EXPANSION, Budget, TooMuch, check_expansion, most
from streamxf.torchsave.archive import Archive, NotSavedByTorch

if TYPE_CHECKING:
    import torch

    from streamxf.objects.check import Check

MAX_OBJECT = 2 * 2**30


class NotAllowed(ValueError):
    """It is more than weights_only allows; says what."""


class NeverLoads(ValueError):
    """Torch refuses it under weights_only whatever is allowed; says why."""


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
            raise ParameterError(f"weights_only is True or False, not {weights_only!r}")
        if isinstance(safe_globals, str) or not isinstance(safe_globals, Sequence):
            raise ParameterError("safe_globals is a list of classes and functions")
        if safe_globals and not weights_only:
            raise ParameterError("weights_only=False allows everything, so safe_globals= would mean nothing")
        self._given = frozenset(safe_globals)
        self._names: Set[str] = frozenset()
        if safe_globals:
            from streamxf.objects.check import names_of  # which imports NumPy, for as long as an empty load takes

            self._names = names_of(safe_globals)
        self.weights_only = weights_only
        self.max_expansion = check_expansion(max_expansion)

    def limit(self, stored: int) -> int | None:
        """The most bytes that an object may have which takes `stored` bytes in storage; None for any number."""
        return min(MAX_OBJECT, most(stored, self.max_expansion)) if self.weights_only else None

    def budget(self) -> Budget | None:
        """What all objects of one load may take, before the first file is opened; None for any number of bytes."""
        return Budget(self.max_expansion, 0) if self.weights_only else None

    def renew(self, data: bytes, stored: int) -> bytes:
        """What a planner may be given for an object's `data`: a new serialization; as it is without `weights_only`."""
        return _saved(self.load(data, stored)) if self.weights_only else data

    def load(self, data: bytes, stored: int) -> Any:
        """The object, which takes `stored` bytes in storage; torch is imported only where it is needed. Raises
        PolicyError if it is more than weights_only allows, MetadataError if it is a tensor, or torch cannot make an
        object of it.
        """
        if not self.weights_only:
            import torch

            return torch.load(io.BytesIO(data), weights_only=False)
        try:
            return self._made(data, stored)
        except NeverLoads as error:
            raise PolicyError(
                f"the object was not loaded: {error}, so it cannot be loaded with weights_only, whatever safe_globals= "
                "names. Store a list, a dict or a string in its place, or pass weights_only=False, which unpickles "
                "everything and lets whoever wrote the checkpoint run code here"
            ) from None
        except (NotSavedByTorch, TooMuch, NotAllowed) as error:
            raise PolicyError(
                f"the object was not loaded: {error}. If you trust it, name the classes and functions that it needs, "
                "safe_globals=[...] (streamxf.unsafe_globals lists those of a whole checkpoint); weights_only=False "
                "unpickles everything, which lets whoever wrote the checkpoint run code here"
            ) from None
        except StreamxfError:
            raise
        except Exception as error:  # a pickle that torch allows may still fail in any way
            raise MetadataError(
                f"the object cannot be loaded: {type(error).__name__}: {shorten(str(error), 300)}"
            ) from error

    def load_tensor(self, file: Any, size: int, stored: int) -> torch.Tensor:
        """What ``torch.load`` makes of a tensor's file of `size` bytes, on the CPU; always with weights_only. Raises
        PolicyError if it needs a class that is not allowed; MetadataError if ``torch.save`` did not write it, or it
        is damaged, or holds no tensor; and what `file` raises.
        """
        import torch

        try:
            archive = Archive(file, size)
            tensor = self._unpickled(archive, self._checked(archive, stored)[0], "cpu")
        except (NotSavedByTorch, TooMuch, NeverLoads) as error:
            raise MetadataError(f"the item holds no tensor that torch.save wrote: {error}") from None
        except NotAllowed as error:
            raise PolicyError(
                f"the tensor was not loaded: {error}. If you trust it, name the classes and functions that it needs, "
                "safe_globals=[...]"
            ) from None
        except (StreamxfError, OSError, MemoryError):
            raise
        except Exception as error:  # torch raises anything for a pickle that it cannot load
            raise MetadataError(f"torch cannot load the stored tensor: {type(error).__name__}: {error}") from error
        if not isinstance(tensor, torch.Tensor):
            raise MetadataError(f"the item holds a {type(tensor).__name__}, the metadata says a tensor")
        if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type == "meta":
            kind = "nested" if tensor.is_nested else "meta" if tensor.device.type == "meta" else str(tensor.layout)
            raise MetadataError(f"the stored tensor is of a kind that DCP does not save ({kind}): it was altered")
        return tensor

    def _made(self, data: bytes, stored: int) -> Any:
        from streamxf.objects.calls import Unfinished

        archive = Archive(io.BytesIO(data), len(data))
        check, value = self._checked(archive, stored)
        if not check.names:
            return value
        if check.plain:
            with suppress(Unfinished):  # a name stands where a value does
                return pickle.loads(pickle.dumps(value, 2))  # with NumPy's own classes in the place of ours
        import torch

        made = self._unpickled(archive, check)
        if isinstance(made, torch.Tensor):
            raise MetadataError("the item holds a tensor, the metadata says an object")
        return made

    def _checked(self, archive: Archive, stored: int) -> tuple[Check, Any]:
        from streamxf.objects.check import Check, shown

        check = Check(archive.pickled, archive.sizes, stored, self._trusted)
        value = check.load()
        if check.never:
            raise NeverLoads(check.never)
        if check.unknown:
            raise NotAllowed(f"it needs {shown(sorted(check.unknown))}")
        return check, value

    def _trusted(self) -> Set[str]:
        from streamxf.objects.check import chosen

        return self._names | chosen()

    def _unpickled(self, archive: Archive, check: Check, map_location: str | None = None) -> Any:
        import torch

        from streamxf.objects.check import lent
        from streamxf.objects.stand_ins import STAND_INS

        known = {**STAND_INS, "builtins.bytes": bytes}  # torch forgot the type of b""
        stand_ins = {(known[name], name) for name in check.names & (known.keys() - self._trusted())}
        try:
            with lent(self._given | stand_ins):
                made = unpickle(archive, map_location)
        except pickle.UnpicklingError as error:
            raise NotAllowed(f"torch refuses it: {shorten(str(error), 300)}") from None
        return torch.load(io.BytesIO(_saved(made)), weights_only=False) if stand_ins else made


def _saved(made: Any) -> bytes:
    import torch

    file = io.BytesIO()
    try:
        torch.save(made, file)
    except Exception as error:  # whatever classes of the caller's raise
        raise MetadataError(
            f"the object cannot be serialized again: {type(error).__name__}: {shorten(str(error), 300)}"
        ) from error
    return file.getvalue()
