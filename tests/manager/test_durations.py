"""Times as people write them."""

import pytest

from streamxf.manager.retention import Retention, duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("90", 90), ("90s", 90), (" 1.5 h ", 5400), ("30m", 1800), ("2min", 120), ("7D", 604800), ("4w", 2419200)],
        ("0", 0),
    ],
)
def test_a_time_as_people_write_it(text: str, seconds: float):
    assert duration(text) == seconds
    if seconds:
        assert Retention(max_age=text) == Retention(max_age=seconds)


@pytest.mark.parametrize("text", ["", "d", "soon", "-1d", "1e3", "1 2", "7 days", "1y"])
def test_what_is_no_time(text: str):
    assert duration(text) is None
