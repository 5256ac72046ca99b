"""The layout of help texts: paragraphs are wrapped to the terminal's width, in colour where the terminal has it."""

from __future__ import annotations

from rich.text import Text
from rich_argparse import RichHelpFormatter


class HelpFormatter(RichHelpFormatter):
    """Wraps paragraphs to the terminal's width, and leaves indented lines, which are examples, as they are."""

    group_name_formatter = str.capitalize

    def _rich_fill_text(self, text: Text, width: int, indent: Text) -> Text:
        filled = Text("\n\n").join(self._fill_block(block, width, indent) for block in text.split("\n\n"))
        return filled + "\n\n"

    def _fill_block(self, block: Text, width: int, indent: Text) -> Text:
        lines: list[Text] = []
        paragraph: list[Text] = []
        for line in [*block.split(), None]:
            if line is not None and not line.plain.startswith("  "):
                paragraph.append(line)
                continue
            if paragraph:
                joined = Text(" ").join(paragraph)
                lines += joined.wrap(self.console, width - len(indent))
                paragraph = []
            if line is not None:
                lines.append(line)
        for line in lines:
            line.rstrip()
        return Text("\n").join(indent + line for line in lines)
