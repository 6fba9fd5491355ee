"""Numbers that the format fixes; docs/format.md."""

CONTAINER_MAGIC = b"\xd3SXF\r\n\x1a\n"
FOOTER_MAGIC = b"\n\x1a\r\nFXS\xd3"
PLAIN_MAGIC = b"\xd3SXK\r\n\x1a\n"
SEAL_MAGIC = b"\n\x1a\r\nKXS\xd3"
METADATA_MAGIC = b"\n\x1a\r\nMXS\xd3"

VERSION = 1
MIN_BLOCK_LOG2, MAX_BLOCK_LOG2, DEFAULT_BLOCK_LOG2 = 16, 24, 20
MAX_CHAIN = 1024
MAX_IDENTITY = 4096
MAX_CODECS = 8
MAX_NDIM = 64
MAX_DTYPE = 32
MAX_BLOCKS = 2**32 - 1
MAX_RAW_SIZE = 2**48
MAX_INT = 2**63 - 1
SALT_BYTES = 32
SEAL_BYTES = 32
WRITER_ID_BYTES = 16
DIGEST_BYTES = 32

BLOCK_HEAD_BYTES = 8
FOOTER_BYTES = 32
HEADER_FIXED_BYTES = 48
MAX_HEADER = HEADER_FIXED_BYTES + MAX_CHAIN + MAX_IDENTITY + SEAL_BYTES + 4

MAX_KEY_LINE = 32768
MAX_INDEX = 2**27
MAX_INDEX_EXPANSION = 64
MAX_EXTRA_DEPTH = 128
MAX_KEYS = 2**26
TRAILER_BYTES = 88

MAX_PATH = 4096
MAX_STEPS = 256
MAX_STEP = 2**20 - 1


def stage_limit(block_size: int) -> int:
    """E of the format: the most bytes that any codec of a chain may give or take for a block."""
    return block_size + block_size // 16 + 1024
