"""Reader: parses an HTML page for tests."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = ("meta", "br", "img", "link", "input", "hr")


class Reader(HTMLParser):
    """Collects a page's text, its elements with their attributes, and its unmatched tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.mismatches: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.mismatches.extend(self._open)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.text += " "
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.mismatches.append(f"/{tag} at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.text += data
