"""`CodecConformance`, the suite as a pytest class: one test for each property, so that a report names what fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from streamxf.codec import Codec
from streamxf.keys import KeysLike
from streamxf.testing.case import Case
from streamxf.testing.check import check_property


class CodecConformance:
    """The conformance suite; derive a test class from it.

    ::

        class TestDelta(CodecConformance):
            def codecs(self):
                return [Delta(), Delta(stride=2)]

    Attributes
    ----------
    codec : Codec
        The codec to test, unless `codecs` is overridden.
    keys : Key, bytes, several of them or a KeyRing, optional
        What a reader needs, for a codec that encrypts.
    examples : int, optional
        Examples that hypothesis draws for a property; by default as many as the loaded hypothesis profile says.
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

    def test_name_and_version(self, conformance_case: Case) -> None:
        check_property("name_and_version", conformance_case)

    def test_frozen(self, conformance_case: Case) -> None:
        check_property("frozen", conformance_case)

    def test_pickling(self, conformance_case: Case) -> None:
        check_property("pickling", conformance_case)

    def test_descriptor(self, conformance_case: Case) -> None:
        check_property("descriptor", conformance_case)

    def test_round_trip(self, conformance_case: Case) -> None:
        check_property("round_trip", conformance_case)

    def test_block_edges(self, conformance_case: Case) -> None:
        check_property("block_edges", conformance_case)

    def test_large_block(self, conformance_case: Case) -> None:
        check_property("large_block", conformance_case)

    def test_container(self, conformance_case: Case) -> None:
        check_property("container", conformance_case)

    def test_encoded_size(self, conformance_case: Case) -> None:
        check_property("encoded_size", conformance_case)

    def test_decoded_size(self, conformance_case: Case) -> None:
        check_property("decoded_size", conformance_case)

    def test_hostile_bytes(self, conformance_case: Case) -> None:
        check_property("hostile_bytes", conformance_case)

    def test_hostile_sizes(self, conformance_case: Case) -> None:
        check_property("hostile_sizes", conformance_case)

    def test_truncation(self, conformance_case: Case) -> None:
        check_property("truncation", conformance_case)

    def test_trailing_bytes(self, conformance_case: Case) -> None:
        check_property("trailing_bytes", conformance_case)

    def test_input_unchanged(self, conformance_case: Case) -> None:
        check_property("input_unchanged", conformance_case)

    def test_scratch_contents(self, conformance_case: Case) -> None:
        check_property("scratch_contents", conformance_case)

    def test_stateless(self, conformance_case: Case) -> None:
        check_property("stateless", conformance_case)

    def test_threads(self, conformance_case: Case) -> None:
        check_property("threads", conformance_case)
