"""What reports become in JSON; docs/json-schema.json has all of it. A field of one name has one type everywhere."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamxf.tools.convert.result import Converted
    from streamxf.tools.rekey.recipients import Recipients
    from streamxf.tools.salvage.result import Lost, Salvaged
    from streamxf.tools.verify.report import Damage, VerifyReport


def of_verified(report: VerifyReport) -> dict[str, Any]:
    """What `verify` found."""
    return {"ok": report.ok, **asdict(report), "damaged": [_of_damage(one) for one in report.damaged]}


def of_salvaged(found: Salvaged, written: Converted | None) -> dict[str, Any]:
    """What `salvage` brought back, and the checkpoint that it made of that."""
    return {
        "loaded": found.loaded,
        "damaged": [_of_damage(one) for one in found.damaged],
        "partial": found.partial,
        "unchecked": found.unchecked,
        "save_ids": list(dict.fromkeys(found.save_ids.values())),
        "written": None if written is None else asdict(written),
    }


def of_recipients(found: Recipients) -> dict[str, Any]:
    """Who may read."""
    signers = [signer for signer in found.signers if signer is not None]
    return {**asdict(found), "signers": signers, "unsigned": None in found.signers}


def _of_damage(one: Damage | Lost) -> dict[str, Any]:
    facts = asdict(one)
    facts["type"] = facts.pop("error")
    return facts
