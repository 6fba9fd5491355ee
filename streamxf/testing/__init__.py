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

try:
    import hypothesis  # noqa: F401 - only to say what to install, before a module of the suite fails for want of it
except ImportError as error:
    raise ImportError(
        "streamxf.testing needs hypothesis, which is not installed: pip install 'streamxf[testing]'"
    ) from error

from streamxf.testing.case import ConformanceError
from streamxf.testing.check import PROPERTIES, CodecConformance, check_codec, check_property
from streamxf.testing.storage import FILES, check_storage

__all__ = [
    "FILES",
    "PROPERTIES",
    "CodecConformance",
    "ConformanceError",
    "check_codec",
    "check_property",
    "check_storage",
]
