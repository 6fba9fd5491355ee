"""The same in object stores, where files cannot be linked and readers may have read-only credentials."""

from pathlib import Path
from typing import Any

import streamxf
from tests.publishing.weights import Policy, assert_same, publisher


def test_versions_in_a_bucket_are_followed_bit_for_bit(place: tuple[str, dict[str, Any]], tmp_path: Path):
    url, options = place
    policy, into = Policy(), {}
    publishing = publisher(url, full_every=3, keep=2, grace=0, storage_options=options)
    follower = streamxf.Follower(url, into, storage_options=options)
    folder = streamxf.Follower(url, tmp_path / "into", storage_options=options)
    assert follower.prepare() is None
    for step in range(1, 8):
        policy.step()
        made = publishing.publish(step, policy.tensors.items())
        for each in (follower, folder)[: 1 + (step % 2)]:
            each.prepare().apply()
            assert each.held == made
            assert each.verify() == ()
            assert each.prepare() is None
        assert_same(into, policy.tensors)
    assert folder.held.number == 7
    fresh: dict[str, Any] = {}
    streamxf.Follower(url, fresh, storage_options=options).prepare().apply()
    assert_same(fresh, policy.tensors)
    names = {record.name for record in streamxf.list_checkpoints(url, storage_options=options)}
    assert "step-7" in names
    assert len(names) < 5, "old ones are removed, but for what newer ones need"
