"""`CodecConformance`, the suite as a pytest class: one test for each property, so that a report names what fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from streamxf.codec import Codec
from streamxf.keys import KeysLike
from streamxf.testing.case import Case
from streamxf.testing.check import PROPERTIES, check_property


class CodecConformance:
    """The conformance suite; derive a test class from it.

    ::

        class TestDelta(CodecConformance):
            def codecs(self):
                return [Delta(), Delta(stride=2)]

    - `codec`: the codec to test, unless `codecs` is overridden.
    - `keys`: what a reader needs, for a codec that encrypts.
    - `examples`: examples that hypothesis draws for a property; by default as many as the loaded hypothesis profile
      says.
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
