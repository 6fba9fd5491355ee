"""Made the JSON files beside it: the groups that apply to streamxf, without what no test here looks at.

``python tests/vectors/wycheproof/trim.py CHECKOUT`` with a work tree of https://github.com/C2SP/wycheproof.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def _all(group: Json) -> bool:
    return True


# file: which of its groups, which fields of a group, and which of a case
WANTED: dict[str, tuple[Callable[[Json], bool], set[str], set[str]]] = {
    "aes_gcm_test": (
        lambda group: (group["keySize"], group["ivSize"], group["tagSize"]) == (256, 96, 128),
        {"keySize", "ivSize", "tagSize"},
        {"key", "iv", "aad", "msg", "ct", "tag"},
    ),
    "hkdf_sha256_test": (_all, {"keySize"}, {"ikm", "salt", "info", "size", "okm"}),
    "aes_wrap_test": (lambda group: group["keySize"] == 256, {"keySize"}, {"key", "msg", "ct"}),
    "x25519_test": (_all, {"curve"}, {"public", "private", "shared"}),
    "ed25519_test": (_all, {"publicKey"}, {"msg", "sig"}),
    "mlkem_768_test": (_all, {"parameterSet"}, {"seed", "c", "K"}),
    "mlkem_768_encaps_test": (_all, {"parameterSet"}, {"ek"}),
}
CASE = {"tcId", "comment", "flags", "result"}


def main(checkout: Path) -> None:
    for name, (applies, of_group, of_case) in WANTED.items():
        source = json.loads((checkout / "testvectors_v1" / f"{name}.json").read_text())
        groups = [
            {key: group[key] for key in of_group & group.keys()}
            | {"tests": [{key: case[key] for key in sorted((CASE | of_case) & case.keys())} for case in cases]}
            for group in source["testGroups"]
            if applies(group) and (cases := _thin(name, group["tests"]))
        ]
        out = {"algorithm": source["algorithm"], "schema": source["schema"], "testGroups": groups}
        (Path(__file__).parent / f"{name}.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


def _thin(name: str, cases: list[Json]) -> list[Json]:
    """Of the long files only what is special, and some of the rest."""
    if name == "x25519_test":
        rare = {"LowOrderPublic", "ZeroSharedSecret", "NonCanonicalPublic", "SpecialPublicKey"}
        return [case for case in cases if rare & set(case["flags"]) or case["tcId"] % 10 == 1]
    if name == "mlkem_768_test":
        return [case for case in cases if case["result"] == "invalid" or case["flags"] or case["tcId"] % 20 == 0]
    if name == "mlkem_768_encaps_test":
        bad = [case for case in cases if case["result"] == "invalid"]
        return [case for case in bad if case["flags"] or len(case["ek"]) != 2 * 1184 or case["tcId"] % 20 == 0]
    return cases


if __name__ == "__main__":
    main(Path(sys.argv[1]))
