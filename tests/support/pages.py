"""Read an HTML page as a browser would, far enough to see what is on it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "input", "br", "img", "hr"})


class ReadPage(HTMLParser):
    """The elements of a page, and its text by the elements around it."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        """Name of an element -> the text of each element of that name."""
        self.rows: list[list[str]] = []
        """The cells of every row of a table."""
        self.unbalanced: list[str] = []
        self._open: list[tuple[str, list[str]]] = []
        self.feed(page.decode())
        self.close()
        self.unbalanced += [tag for tag, _ in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append((tag, []))
        if tag == "tr":
            self.rows.append([])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1][0] != tag:
            self.unbalanced.append(tag)
            return
        text = "".join(self._open.pop()[1])
        self.texts.setdefault(tag, []).append(text)
        if tag in {"td", "th"}:
            self.rows[-1].append(text)

    def handle_data(self, data: str) -> None:
        for _, text in self._open:
            text.append(data)

    def with_tag(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element of a name."""
        return [attributes for name, attributes in self.elements if name == tag]

    def row(self, first: str) -> list[str]:
        """Return the first row that begins with a cell of this text."""
        return next(row for row in self.rows if row and row[0] == first)
