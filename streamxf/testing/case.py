"""`Case`: a codec under test, with what a reader of its data would have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from streamxf.codec import Codec, parameter_fields
from streamxf.descriptor import ENCRYPT, Descriptor
from streamxf.keys import KeyRing, KeysLike
from streamxf.registry import CodecRegistry
from streamxf.testing.failure import require


class Case:
    """A codec under test; parameters as for `check_codec`."""

    def __init__(
        self, codec: Codec, keys: KeysLike = None, *, examples: int | None = None, patience: float = 60.0
    ) -> None:
        if not isinstance(codec, Codec):
            raise TypeError(f"the conformance suite tests a streamxf.Codec, not {codec!r}")
        self.codec = codec
        self.keys = KeyRing.of(keys)
        self.examples = examples
        self.patience = patience

    def __str__(self) -> str:
        cls = type(self.codec)
        values = ((field.name, getattr(self.codec, field.name, None)) for field in parameter_fields(cls))
        # a key says nothing to whoever reads the name of a test
        shown = ", ".join(f"{name}={value!r}" for name, value in values if isinstance(value, int | str))
        return f"{cls.__name__}({shown})"

    @property
    def keyed(self) -> bool:
        """Whether the codec takes its key from the reader and not from its parameters."""
        return self.codec.name == ENCRYPT

    @cached_property
    def registry(self) -> CodecRegistry:
        """A registry that finds the codec by name: by its entry point, or else because it is registered here."""
        registry, cls = CodecRegistry(), type(self.codec)
        if registry.knows(cls.name):
            found = registry.find(cls.name)
            require(found is cls, f"the name {cls.name!r} finds {found.__module__}.{found.__qualname__}, another class")
        else:
            registry.register(cls)
        return registry

    def rebuild(self, descriptor: str) -> Codec:
        """The codec that a reader makes of a descriptor."""
        return self.registry.build(Descriptor.parse(descriptor), self.keys)

    def for_all(self, property: Callable[..., None], *strategies: SearchStrategy[Any]) -> None:
        """Run `property` on what hypothesis draws from `strategies`."""
        # deadline: a shared machine stalls; database: the examples of one codec say nothing about the next
        changes: dict[str, Any] = {"deadline": None, "database": None, "report_multiple_bugs": False}
        if self.examples is not None:
            changes["max_examples"] = self.examples
        configured = settings(**changes, suppress_health_check=list(HealthCheck))
        configured(given(*strategies)(property))()
