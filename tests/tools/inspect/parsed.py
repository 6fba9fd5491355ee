"""A page, read as a browser reads it, but for its script."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


@dataclass
class Element:
    """An element with the text that stands directly in it."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class Page:
    """A page's elements in their order, and the data that its script draws."""

    elements: list[Element] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Page:
        page = cls()
        _Parser(page).feed(text)
        return page

    @classmethod
    def read(cls, file: Path) -> Page:
        return cls.parse(file.read_text(encoding="utf-8"))

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    @property
    def data(self) -> Any:
        (found,) = (element for element in self.all("script") if element.attributes.get("id") == "data")
        return json.loads(found.text)

    @property
    def policy(self) -> str:
        (found,) = (element for element in self.all("meta") if "http-equiv" in element.attributes)
        return found.attributes["content"] or ""


class _Parser(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__(convert_charrefs=True)
        self.page = page
        self.open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.page.elements.append(element)
        if tag not in ("meta", "link", "input", "img", "br"):
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1].text += data
