"""Many small cases, some of them to each test: pytest and xdist take longer for a test than such a case takes."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def in_lots(names: str, cases: Iterable[Any], size: int = 25) -> Any:
    """As `pytest.mark.parametrize`, with so many cases to a test, each with a `tmp_path` of its own. An error names its
    case; those behind it do not run then.
    """
    wanted, found = names.replace(",", " ").split(), list(cases)

    def decorate(test: Callable[..., None]) -> Any:
        @wraps(test)
        def run(lot: int, **fixtures: Any) -> None:
            for number, case in enumerate(found[lot : lot + size]):
                own = dict(fixtures)
                if "tmp_path" in own:
                    own["tmp_path"] /= str(number)
                    own["tmp_path"].mkdir()
                try:
                    test(**dict(zip(wanted, case if len(wanted) > 1 else [case], strict=True)), **own)
                except BaseException as error:
                    error.add_note(f"case {lot + number}: {case!r:.200}")
                    raise

        others = [each for name, each in inspect.signature(test).parameters.items() if name not in wanted]
        lot = inspect.Parameter("lot", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others), lot]
        )
        return pytest.mark.parametrize("lot", range(0, len(found), size))(run)

    return decorate
