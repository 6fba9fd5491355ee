"""Conformance suites for codecs and storages, which streamxf's own pass.

For codecs as a test class, which names each property in the report::

    class TestDelta(streamxf.testing.CodecConformance):
        codec = Delta(stride=2)

or as a function, which raises with every property that does not hold::

    streamxf.testing.check_codec(Delta(stride=2))

And for storages::

    streamxf.testing.check_storage(MyStorage("an/empty/place"))

Needs hypothesis: ``pip install 'streamxf[testing]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

try:
    import hypothesis  # noqa: F401 - only to say what to install, before a module of the suite fails for want of it
except ImportError as error:
    raise ImportError(
        "streamxf.testing needs hypothesis, which is not installed: pip install 'streamxf[testing]'"
    ) from error

from streamxf.codec import Codec
from streamxf.reading import KeysLike
from streamxf.testing import properties
from streamxf.testing.case import Case
from streamxf.tools.check import FILES, ConformanceError, check_storage

__all__ = ["FILES", "PROPERTIES", "CodecConformance", "ConformanceError"]
__all__ += ["check_codec", "check_property", "check_storage"]

_FUNCTIONS: dict[str, Callable[[Case], None]] = {
    name: found
    for name, found in vars(properties).items()
    if getattr(found, "__module__", "") == properties.__name__ and not name.startswith("_")
}

PROPERTIES: dict[str, str] = {name: " ".join((check.__doc__ or "").split()) for name, check in _FUNCTIONS.items()}
"""The properties by name, each with its rule."""


def check_codec(
    codec: Codec,
    *,
    keys: KeysLike = None,
    examples: int | None = None,
    properties: Iterable[str] | None = None,
    patience: float = 60.0,
) -> None:
    """Check that a codec has every property that streamxf relies on; ConformanceError names those that it lacks.

    Parameters
    ----------
    codec : Codec
        With the parameters to test; call this once for each set of parameters that matters.
    keys : Key, bytes, several of them or a KeyRing, optional
        The reader's keys, for a codec that encrypts.
    examples : int, optional
        Examples that hypothesis draws for a property; by default as many as the loaded hypothesis profile says.
    properties : iterable of str, optional
        Names from `PROPERTIES`; all of them by default.
    patience : float
        Seconds after which a decode of hostile bytes counts as one that never ends.
    """
    case = Case(codec, keys, examples=examples, patience=patience)
    failures: list[ConformanceError] = []
    for name in PROPERTIES if properties is None else properties:
        try:
            check_property(name, case)
        except ConformanceError as failure:
            failures.append(failure)
    if failures:
        raise ConformanceError("\n".join(map(str, failures))) from failures[0]


def check_property(name: str, case: Case) -> None:
    """Check one property of `PROPERTIES`; raises ConformanceError if it does not hold."""
    if name not in _FUNCTIONS:
        raise ValueError(f"there is no property {name!r}; there are {', '.join(PROPERTIES)}")
    try:
        _FUNCTIONS[name](case)
    except Exception as error:
        seen = str(error) if isinstance(error, ConformanceError) else f"{type(error).__name__}: {error}"
        raise ConformanceError(f"{case} fails {name}: {seen}. The rule: {PROPERTIES[name]}") from error


class CodecConformance:
    """The conformance suite; derive a test class from it.

    ::

        class TestDelta(CodecConformance):
            def codecs(self):
                return [Delta(), Delta(stride=2)]

    - `codec`: the codec to test, unless `codecs` is overridden.
    - `keys`, `examples`: as for `check_codec`.
    """

    codec: ClassVar[Codec | None] = None
    keys: ClassVar[KeysLike] = None
    examples: ClassVar[int | None] = None

    def codecs(self) -> Sequence[Codec]:
        """The codecs to test: one for each set of parameters that matters."""
        if self.codec is None:
            raise TypeError(f"{type(self).__name__} must set codec = ..., or define codecs() that returns a list")
        return [self.codec]

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Called by pytest: run each test for each codec."""
        if "conformance_case" in metafunc.fixturenames:
            cases = [Case(codec, self.keys, examples=self.examples) for codec in self.codecs()]
            metafunc.parametrize("conformance_case", cases, ids=str)


def _test_of(name: str) -> Callable[[CodecConformance, Case], None]:
    def test(self: CodecConformance, conformance_case: Case) -> None:
        check_property(name, conformance_case)

    test.__doc__ = PROPERTIES[name]
    return test


for _name in PROPERTIES:
    setattr(CodecConformance, f"test_{_name}", _test_of(_name))
