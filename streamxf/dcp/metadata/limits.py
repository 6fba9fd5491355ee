"""Limits on what ``.metadata`` may hold; docs/format.md, "Limits of the metadata"."""

MAX_METADATA = 2**30
"""Bytes of the whole file."""

MAX_METADATA_FILES = 2**17
"""Metadata files of a folder whose recipients change: one for each rank."""

MAX_ALL_METADATA = 2**36
"""Bytes of all of them."""

MAX_MANIFEST = 64 * 2**20
"""Bytes of the manifest."""

MAX_PACKAGES = 1024
"""Packages that the manifest names."""

MAX_PACKAGE_TEXT = 256
"""Characters of a package's name, and of its version."""

MAX_LOOSE_MANIFEST = 2**20
"""Bytes of a manifest that is parsed before anybody has vouched for it, whatever its layout."""

MAX_MANIFEST_END = 2**22
"""Bytes of a larger manifest behind its files."""

MAX_NAME = 2**16 - 1
"""Characters of an item's name, and of every other short text but a file's path."""

MAX_PATH = 4096
"""Characters of a file's path, relative to the checkpoint: no system opens a longer one."""

MAX_DESCRIPTORS = 16
"""Descriptors of an item: 8 codecs, and stream extensions from elsewhere before them."""

MAX_NDIM = 64
"""Dimensions of a tensor, as torch has it."""

MAX_INT = 2**63 - 1
"""The largest size, offset or length, and the most bytes of a tensor."""

MAX_CUT_DIMS = 6
"""Dimensions along which one tensor is cut into chunks."""

MAX_CORNERS = 2**20
"""Corners of all chunks of one tensor, in the dimensions along which it is cut."""

MAX_OVERLAP_CHECKS = 64
"""Neighbours with which each chunk of a rank's own metadata is compared, on average."""

MAX_DEPTH = 32
"""How deep lists, tables and tuples may be nested."""

MAX_LIST = 2**20
"""Elements of all lists that the planner's paths speak of, and 16 more for each path."""

MAX_STEPS = 256
"""Steps of a path of the planner, from the state dict to an item."""
