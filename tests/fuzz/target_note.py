"""A note: its content, keys and vouchers, by both decoders."""

from functools import partial

from streamxf.checkpoint.access import Access
from streamxf.checkpoint.notes import Note
from tests.fuzz import held, metadata_files, second
from tests.fuzz.oracle import attempt
from tests.fuzz.target import Target
from tests.reference_decoder import read_note
from tests.samples import KEY
from tests.sealing import note_digest

_HELD = Access.of(KEY)


def run(data: bytes) -> None:
    content, error = attempt(lambda: [Note.parse(data).content])
    second.compare(content, error, lambda: [read_note(data, second.ANYONE)])
    content, error = attempt(lambda: _checked(Note.parse(data)))
    second.compare(content, error, lambda: [read_note(data, second.HOLDER)])


def _checked(note: Note) -> list[object]:
    note.check(_HELD)
    return [note.content]


TARGET = Target(run, held.notes, partial(metadata_files.mutate, digest=note_digest), max_len=16_384)
