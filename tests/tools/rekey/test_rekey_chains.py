"""Any sequence of adding, removing and rekeying: exactly the recipients of the moment can read."""

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import streamxf
from streamxf import Encrypt, Key, PrivateKey, SigningKey
from streamxf.errors import KeyMissingError, ParameterError, PolicyError, UnsupportedError
from streamxf.keys import KeyRing
from streamxf.tools.rekey.recipients import Recipient
from tests.dcp.helpers import assert_same, load
from tests.dcp.shards import save_as_ranks
from tests.tools.rekey.rekeying import opens

SIGNERS = [SigningKey(bytes(range(number, number + 32))) for number in range(2)]
POOL: list[Any] = [Key(bytes(range(number, number + 32))) for number in range(1, 4)]
POOL += [
    PrivateKey(bytes(range(9, 41))),
    PrivateKey(bytes(range(8, 40))),
    PrivateKey(bytes(range(7, 39)), "hpke-x25519"),
]

members = st.sampled_from(range(len(POOL)))
groups = st.lists(members, min_size=1, max_size=3, unique=True)
signers = st.none() | st.sampled_from(SIGNERS)


def given_away(number: int) -> Any:
    """The half of a pair that a writer has, or a key."""
    key = POOL[number]
    return key.public if isinstance(key, PrivateKey) else key


class Rotation(RuleBasedStateMachine):
    """The model: who may read, and who signed."""

    @initialize(group=groups, signer=signers, local=st.booleans())
    def save(self, group: list[int], signer: SigningKey | None, local: bool) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "checkpoint"
        self.readers = set(group)
        self.signer = signer
        self.signers = {signer.id if signer is not None else None}
        self.local = local
        recipients = [given_away(number) for number in group]
        self.state = save_as_ranks(
            2, self.path, lambda: [Encrypt(recipients, signer=signer)], items=1, use_collectives=not local
        )
        self.data = self.digests()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def digests(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.path.glob("*.distcp")}

    def ring(self, key: Any) -> KeyRing:
        if self.signer is None:
            return KeyRing([key], allow_unsigned=True)
        return KeyRing([key], trust=self.signer.verify_key)

    def opener(self, choice: int) -> KeyRing:
        return self.ring(POOL[sorted(self.readers)[choice % len(self.readers)]])

    def vouched(self, opener: KeyRing, group: list[int]) -> bool:
        """Whether nothing shows who wrote it, and somebody new would take it for authentic."""
        unknown = self.signer is None and not any(key.vouches for key in opener)
        return unknown and any(isinstance(POOL[number], Key) for number in set(group) - self.readers)

    def signs(self, change: Any, signer: SigningKey | None) -> bool:
        """Whether a signer may sign; what was saved without one never can be."""
        if signer is None or self.signer is not None:
            return True
        with pytest.raises(UnsupportedError, match="no digests"):
            change(signer=signer, vouch=True)
        return False

    @rule(choice=members, group=groups, signer=signers)
    def rekey(self, choice: int, group: list[int], signer: SigningKey | None) -> None:
        self.change(streamxf.rekey, choice, group, signer)
        self.readers = set(group)
        self.signed(signer)

    @rule(choice=members, group=groups, signer=signers)
    def add(self, choice: int, group: list[int], signer: SigningKey | None) -> None:
        signs = self.signer is not None and signer is not None and signer.id not in self.signers
        written = self.change(streamxf.add_recipient, choice, group, signer)
        assert bool(written) == bool(set(group) - self.readers or signs)
        self.readers |= set(group)
        self.signed(signer)

    def signed(self, signer: SigningKey | None) -> None:
        """Signatures by others stay."""
        if self.signer is not None and signer is not None:
            self.signer = signer
            self.signers.add(signer.id)

    def change(self, function: Any, choice: int, group: list[int], signer: SigningKey | None) -> tuple[str, ...]:
        opener = self.opener(choice)
        change = functools.partial(
            function, self.path, keys=opener, recipients=[given_away(number) for number in group]
        )
        if not self.signs(change, signer):
            signer = None
        needed = self.vouched(opener, group)
        if needed:
            with pytest.raises(PolicyError, match=r"\(vouch\)"):
                change(signer=signer)
        return change(signer=signer, vouch=needed)

    @precondition(lambda self: len(self.readers) > 1)
    @rule(choice=members, member=members)
    def remove(self, choice: int, member: int) -> None:
        if member in self.readers:
            streamxf.remove_recipient(self.path, keys=self.opener(choice), recipient=POOL[member].id)
            self.readers.remove(member)
        else:
            with pytest.raises(ParameterError, match="no recipient"):
                streamxf.remove_recipient(self.path, keys=self.opener(choice), recipient=POOL[member].id)

    @precondition(lambda self: len(self.readers) == 1)
    @rule()
    def remove_the_last(self) -> None:
        (last,) = self.readers
        with pytest.raises(ParameterError, match="last"):
            streamxf.remove_recipient(self.path, keys=self.ring(POOL[last]), recipient=POOL[last].id)

    @rule(member=members, group=groups)
    def try_from_outside(self, member: int, group: list[int]) -> None:
        if member in self.readers:
            return
        new = [given_away(number) for number in group]
        if {*group} != self.readers:
            with pytest.raises(KeyMissingError):
                streamxf.rekey(self.path, keys=self.ring(POOL[member]), recipients=new)
        with pytest.raises(KeyMissingError):
            streamxf.add_recipient(self.path, keys=self.ring(POOL[member]), recipients=new)

    @rule(choice=members)
    def load(self, choice: int) -> None:
        state = {name: value for name, value in self.state.items() if not self.local or name.startswith("rank.0")}
        assert_same(load(state, self.path, self.opener(choice)), state)

    @invariant()
    def exactly_the_readers_read(self) -> None:
        if not hasattr(self, "path"):
            return
        assert self.digests() == self.data
        files = sorted(file for file in self.path.iterdir() if file.suffix != ".distcp")
        assert [file.name for file in files] == (["__0.metadata", "__1.metadata"] if self.local else [".metadata"])
        for number, key in enumerate(POOL):
            for file in files:
                assert opens(self.path, self.ring(key), file.name) == (number in self.readers)
                if number in self.readers and isinstance(key, PrivateKey):
                    with pytest.raises(PolicyError):
                        opens(self.path, key, file.name)
        found = streamxf.recipients(self.path)
        assert set(found.whole) == {Recipient(POOL[number].kind, POOL[number].id) for number in self.readers}
        assert found.part == ()
        assert set(found.signers) == self.signers


TestRotation = Rotation.TestCase
TestRotation.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
