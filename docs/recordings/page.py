"""Parts of a page that a program writes, each between two markers."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"


def part(name: str, page: Path = PAGE) -> str:
    """What stands between the markers of a part.

    Raises
    ------
    ValueError
        If the page has no such markers.
    """
    text = page.read_text()
    begin, end = _markers(name)
    return text[text.index(begin) + len(begin) : text.index(end)].strip("\n")


def replace(name: str, content: str, page: Path = PAGE) -> None:
    """Put something else between the markers; raises as `part`."""
    begin, end = _markers(name)
    text = page.read_text()
    before, after = text[: text.index(begin)], text[text.index(end) :]
    page.write_text(f"{before}{begin}\n\n{content}\n\n{after}")


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: written by make docs-session -->", f"<!-- end of {name} -->"
