"""Read an HTML page as a browser would, far enough to see what is on it."""

from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "input", "br", "img", "hr"})


class ReadPage(HTMLParser):
    """The elements of a page, and its text by the elements around it."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.texts = {}
        """Name of an element -> the text of each element of that name."""
        self.rows = []
        """The cells of every row of a table."""
        self.unbalanced = []
        self._open = []
        self.feed(page.decode())
        self.close()
        self.unbalanced += [tag for tag, _ in self._open]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append((tag, []))
        if tag == "tr":
            self.rows.append([])

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open[-1][0] != tag:
            self.unbalanced.append(tag)
            return
        text = "".join(self._open.pop()[1])
        self.texts.setdefault(tag, []).append(text)
        if tag in {"td", "th"}:
            self.rows[-1].append(text)

    def handle_data(self, data):
        for _, text in self._open:
            text.append(data)

    def with_tag(self, tag):
        """Return the attributes of each element of a name."""
        return [attributes for name, attributes in self.elements if name == tag]

    def row(self, first):
        """Return the first row that begins with a cell of this text."""
        return next(row for row in self.rows if row and row[0] == first)
