"""Each case of a lot is tried, in a folder of its own, and an error names it."""

from pathlib import Path

import pytest

from tests.lots import in_lots


def test_every_case_is_tried_until_one_fails(tmp_path: Path) -> None:
    tried = []

    @in_lots("number, name", [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (0, "e"), (5, "f")], size=3)
    def trial(name: str, number: int, tmp_path: Path) -> None:
        assert not [*tmp_path.iterdir()]
        (tmp_path / name).touch()
        tried.append(1 / number)

    (lots,) = trial.pytestmark
    assert lots.args == ("lot", range(0, 6, 3))
    with pytest.raises(ZeroDivisionError) as caught:
        trial(lot=3, tmp_path=tmp_path)
    assert tried == [1 / 4]
    assert caught.value.__notes__ == ["case 4: (0, 'e')"]
