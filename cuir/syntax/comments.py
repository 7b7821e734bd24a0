"""Comments and layout of CuIR text: the assignment of comments to lines of code."""

from __future__ import annotations

import re

from .nodes import Comments

_COMMENT = re.compile(r'"{3}[^\\]*?"{3}|\'{3}[^\\]*?\'{3}|"[^"\\\n]*"|\'[^\'\\\n]*\'|#[^\n]*')


class CommentMap:
    """Comments of a text by line number (1-based).

    `lead` above a line of code, `trail` behind it, `tail` below the last one. Each is handed out once, with `take`. An
    empty string in a group of lead comments is a blank line after a comment.
    """

    def __init__(self, text: str):
        self.lead: dict[int, list[str]] = {}
        self.trail: dict[int, str] = {}
        self.tail: list[str] = []
        if "#" in text:
            self._collect(text)

    def _collect(self, text: str) -> None:
        lines = text.split("\n")
        alone: dict[int, str] = {}
        inside: set[int] = set()  # lines within a string of several lines
        line, at = 1, 0
        for match in _COMMENT.finditer(text):
            line += text.count("\n", at, match.start())
            at = match.start()
            if not match[0].startswith("#"):
                inside.update(range(line, line + match[0].count("\n") + 1))
            elif text[text.rfind("\n", 0, at) + 1 : at].strip():
                self.trail[line] = match[0].rstrip()
            else:
                alone[line] = match[0].rstrip()
        group: list[str] = []
        for number, content in enumerate(lines, 1):
            if number in alone:
                group.append(alone[number])
            elif content.strip() or number in inside:
                if group:
                    self.lead[number] = group
                group = []
            elif group and group[-1]:
                group.append("")
        self.tail = group[:-1] if group and not group[-1] else group

    def take(self, first: int, last: int, at_line_start: bool = True, header: int | None = None) -> Comments:
        """Remove and return the comments of lines `first` to `last`.

        The trailing comment stands on line `header` (default `first`).
        """
        if not self.lead and not self.trail:
            return Comments()
        header = first if header is None else header
        lead: list[str] = []
        for line in range(first if at_line_start else first + 1, last + 1):
            lead += self.lead.pop(line, ())
            if line != header and line in self.trail:
                lead.append(self.trail.pop(line))
        trail = self.trail.pop(header, None) if at_line_start or header != first else None
        return Comments(tuple(lead), trail)
