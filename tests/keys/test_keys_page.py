"""The policy that docs/security.md shows. Its Python runs in test_pages.py, its scripts in
test_write_only_nodes.py.
"""

from __future__ import annotations

import json

from tests.keys.page import ARN, blocks


def test_the_policy_is_for_encrypting_alone():
    (policy,) = (json.loads(block.code) for block in blocks() if block.language == "json")
    (statement,) = policy["Statement"]
    assert (statement["Action"], statement["Resource"]) == ("kms:Encrypt", ARN)
