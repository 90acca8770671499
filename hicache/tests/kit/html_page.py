"""HtmlPage: the elements of an HTML page, for tests that look at where something stands and where a link leads."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

INLINE = ("a", "b", "code")
"""Elements whose words are a part of the text around them."""

VOID = ("meta", "br", "img", "link", "input", "hr")


class Element:
    """An element with its attributes, its parent, and its children in order."""

    def __init__(self, tag: str, attributes: dict[str, str], parent: Element | None) -> None:
        self.tag = tag
        self.attributes = attributes
        self.parent = parent
        self.children: list[Element | str] = []

    @property
    def text(self) -> str:
        """All words in it, with single spaces."""
        return " ".join(self._words().split())

    def _words(self) -> str:
        apart = "" if self.tag in INLINE else " "
        words = (one if isinstance(one, str) else one._words() for one in self.children)
        return f"{apart}{''.join(words)}{apart}"

    @property
    def classes(self) -> set[str]:
        """The names of its classes."""
        return set(self.attributes.get("class", "").split())

    def walk(self) -> Iterator[Element]:
        """This element and all in it, in the order of the page."""
        yield self
        for one in self.children:
            if isinstance(one, Element):
                yield from one.walk()

    def all(self, tag: str = "", kind: str = "", **attributes: str) -> list[Element]:
        """The elements inside with this tag, this class and these attributes, in the order of the page."""
        return [
            one
            for one in self.walk()
            if one is not self
            and tag in ("", one.tag)
            and (not kind or kind in one.classes)
            and all(one.attributes.get(name) == value for name, value in attributes.items())
        ]

    def one(self, tag: str = "", kind: str = "", **attributes: str) -> Element:
        """The only such element."""
        found = self.all(tag, kind, **attributes)
        assert len(found) == 1, f"expected one <{tag} class={kind!r} {attributes}> in <{self.tag}>, got {len(found)}"
        return found[0]

    def rows(self) -> list[list[str]]:
        """The texts of the cells of each row of a table."""
        return [[cell.text for cell in row.children if isinstance(cell, Element)] for row in self.all("tr")]

    def inside(self, tag: str = "", kind: str = "") -> bool:
        """Whether it lies in an element with this tag and class."""
        above = self.parent
        while above is not None and not (tag in ("", above.tag) and (not kind or kind in above.classes)):
            above = above.parent
        return above is not None


class HtmlPage(Element):
    """A page. `mismatches`: tags that do not match."""

    def __init__(self, source: str) -> None:
        super().__init__("", {}, None)
        self.mismatches: list[str] = []
        _Parser(self).feed(source)

    def target(self, link: Element) -> Element:
        """What a link within the page leads to."""
        return self.one(id=link.attributes["href"].removeprefix("#"))

    def headings(self) -> list[str]:
        """The texts of the headings of the page's parts, without what is small in them."""
        return [" ".join("".join(one for one in h.children if isinstance(one, str)).split()) for h in self.all("h2")]

    def part(self, heading: str) -> Element:
        """All between the heading of a part and the next one."""
        (found,) = [one for one in self.all("h2") if one.text.startswith(heading)]
        assert found.parent is not None, "a heading lies in the body"
        beside = found.parent.children
        part = Element("", {}, None)
        for one in beside[beside.index(found) + 1 :]:
            if isinstance(one, Element) and one.tag == "h2":
                break
            part.children.append(one)
        return part


class _Parser(HTMLParser):
    def __init__(self, page: HtmlPage) -> None:
        super().__init__()
        self._page = page
        self._open: list[Element] = [page]

    def feed(self, data: str) -> None:
        super().feed(data)
        self._page.mismatches.extend(one.tag for one in self._open[1:])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        one = Element(tag, {name: value or "" for name, value in attrs}, self._open[-1])
        self._open[-1].children.append(one)
        if tag not in VOID:
            self._open.append(one)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}, self._open[-1]))

    def handle_endtag(self, tag: str) -> None:
        if self._open[-1].tag == tag:
            self._open.pop()
        else:
            self._page.mismatches.append(f"/{tag} at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)
