"""Which files are left over, by their names."""

import pytest

from streamxf.checkpoint.publish import leftovers

ID = "a" * 32
NOT_OURS = ["notes.txt", "__0_0.distcp.bak", "x__0_0.distcp", f"__0_0_{ID[1:]}.distcp", "__00_0.distcp", "metadata.tmp"]


@pytest.mark.parametrize("rank", [0, 1, 10, 12])
def test_leftovers_of_a_rank_are_its_own(rank: int) -> None:
    mine = [f"__{rank}_0_{ID}.distcp", f"__{rank}_7.distcp", f"__{rank}.metadata.0123abcd.tmp"]
    others = [name.replace(f"__{rank}", f"__{other}", 1) for name in mine for other in (100, 11, 2)]
    also = [f"__{rank}", f"__{rank}x_0.distcp", f"__{rank}0_0.distcp", f"x__{rank}_0.distcp", ".metadata.tmp"]
    named = {f"__{rank}_1.distcp", f"__{rank}.metadata"}
    assert leftovers([*mine, *others, *also, *named, *NOT_OURS], named, rank) == sorted(mine)


def test_leftovers_of_all_ranks_come_in_the_order_of_ranks() -> None:
    ranks = [f"__{rank}_0_{ID}.distcp" for rank in (0, 2, 10)]
    drafts = [".metadata.0123abcd.tmp", ".metadata.tmp"]
    slips = [f"{ranks[0]}.slip", f"{ranks[0]}.slip.0123abcd.tmp"]
    named = {".metadata", f"__0_1_{ID}.distcp"}
    found = leftovers([*NOT_OURS, *ranks[::-1], "__3.metadata", *slips, *named, *drafts], named, None)
    assert found == [*drafts, ranks[0], *slips, ranks[1], "__3.metadata", ranks[2]]
