"""Numbers that the format fixes; docs/format.md."""

from streamxf.descriptor import MAX_CHAIN as MAX_CHAIN
from streamxf.descriptor import MAX_KEY_LINE as MAX_KEY_LINE

CONTAINER_MAGIC = b"\xd3SXF\r\n\x1a\n"
FOOTER_MAGIC = b"\n\x1a\r\nFXS\xd3"
PLAIN_MAGIC = b"\xd3SXK\r\n\x1a\n"
SEAL_MAGIC = b"\n\x1a\r\nKXS\xd3"
METADATA_MAGIC = b"\n\x1a\r\nMXS\xd3"
NO_PICKLE = b"\xd3SXM\r\n\x1a\n"  # the head of a metadata file that torch's own readers cannot read
PART_MAGIC = b"SXP\x01"

VERSION = SUITE = 1
FORMAT = bytes([VERSION, SUITE, 0, 0])  # format bytes: version, suite, critical and informative flags
MIN_BLOCK_LOG2, MAX_BLOCK_LOG2, DEFAULT_BLOCK_LOG2 = 16, 24, 20
MAX_IDENTITY = 4096
MAX_CODECS = 8
MAX_NDIM = 64
MAX_DTYPE = 36
MAX_RAW_SIZE = 2**48
MAX_NUMBER = 2**53 - 1  # which any JSON library can read
MAX_INT = 2**63 - 1  # in other libraries' files
SALT_BYTES = 16
SEAL_BYTES = 32
WRITER_ID_BYTES = 16
DIGEST_BYTES = 32

BLOCK_HEAD_BYTES = 8
FOOTER_BYTES = 20
HEADER_FIXED_BYTES = 33
MAX_HEADER = HEADER_FIXED_BYTES + MAX_CHAIN + MAX_IDENTITY + DIGEST_BYTES + SEAL_BYTES + 4

MAX_ROOT = 2**26
FREE_ROOT, ROOT_EXPANSION = 2**20, 16  # bytes that any root may decompress to, and those for each that is stored
MAX_PART = 2**22
FREE_PARTS, PARTS_EXPANSION = 2**23, 256  # the same of all parts together
FREE_MARKS, MARK_BYTES = 2**16, 3  # commas and opening brackets of any JSON, and what each further one takes, stored
FILE_BYTES, ITEM_BYTES, CHUNK_BYTES = 16, 2, 4  # of a part, as it is stored, for each that it has
MAX_DTYPES = MAX_CHAINS = 256
MAX_BENEATH = 16
MAX_RANK = 2**31 - 2
NO_RANK = MAX_RANK + 1
MAX_DEPTH = 128
KEYS_BYTES = 2 * MAX_KEY_LINE + 1
MAX_METADATA = 2**30  # of other writers
WRAPPED_KEY_BYTES = 40
TRAILER_BYTES = 104

MAX_PATH = 4096
MAX_STEPS = 256
MAX_STEP = 2**20 - 1

MAX_VALUE = 2**20  # bytes of a value, which consists of at most so many, nested in each other
MAX_NODES = 2**16
MAX_VALUE_DEPTH = 64
MAX_VALUES = 2**24  # bytes of the stream of a writer's values

MAX_NAME = 255
MAX_RULES_DEPTH = 8
MAX_NOTE = 2**23
MAX_NOTE_MARKS = 2**19  # commas and brackets, so that no note takes long to parse, or much memory
