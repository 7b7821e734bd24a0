"""Journals: files of JSON lines with the results of tasks, from which an interrupted campaign continues."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..text.diagnostics import CuirError
from ..text.jsontext import append_line, has_content

KEY = "id"  # the field of a row that holds the key of its task


@dataclass(frozen=True)
class JournalKind:
    """Kind of the journals of a command.

    Attributes:
        code: Error code for a file of another kind.
        command: Command that writes them.
        names: What the head names.
        option: Option that names the file.
    """

    code: str
    command: str
    names: str
    option: str = "--out"

    @property
    def hint(self) -> str:
        """Advice for a file of another kind."""
        return f"name another file with {self.option}, or remove it"


class Journal:
    """A file of JSON lines: a head, then a row for each finished task, which holds the task's key as `id`.

    Rows are written as tasks finish, in any order. A last line that an interruption cut short is omitted.

    Attributes:
        path: The file; None keeps the rows in memory.
        rows: The rows, by key.
        lines: Numbers of the lines that were read, by key.
        begun: Whether the file held a campaign already.
    """

    def __init__(self, path: Path | None, head: Mapping[str, Any], kind: JournalKind):
        """Open a journal, or read the rows of an earlier run with the same head.

        Raises CuirError: the kind's code for a file of something else, U108 if the file cannot be written.
        """
        self.path, self.head, self.kind = path, dict(head), kind
        self.rows: dict[str, dict[str, Any]] = {}
        self.lines: dict[str, int] = {}
        self.begun = path is not None and has_content(path)
        if self.begun:
            self._read()

    def begin(self) -> None:
        """Write the head, unless the file has it."""
        if not self.begun:
            self._append(self.head)
            self.begun = True

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row. Raises CuirError U108."""
        self.begin()
        self.rows[row[KEY]] = dict(row)
        self._append(row)

    def sort(self, keys: Sequence[str]) -> None:
        """Write the rows in the order of `keys`, so that the file does not depend on which task finished first."""
        order = {key: number for number, key in enumerate(keys)}
        kept = [self.rows[k] for k in order if k in self.rows] + [r for k, r in self.rows.items() if k not in order]
        if self.path is None or not self.begun or list(self.rows.values()) == kept:
            return
        beside = self.path.with_name(self.path.name + ".sorted")
        try:
            beside.write_text("".join(json.dumps(line) + "\n" for line in (self.head, *kept)), encoding="utf-8")
            os.replace(beside, self.path)
        except OSError as error:
            raise self._make_write_error(error) from None
        self.rows = {row[KEY]: row for row in kept}

    def refuse(self, number: int, what: str) -> CuirError:
        """Return the error for a line that is no row."""
        return CuirError.of(self.kind.code, f"line {number} of {self.path} is {what}", hint=self.kind.hint)

    def _append(self, line: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, json.dumps(line))
        except OSError as error:
            raise self._make_write_error(error) from None

    def _read(self) -> None:
        kind, path = self.kind, self.path
        assert path is not None
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise CuirError.of(kind.code, f"{path} cannot be read: {error.strerror}", hint=kind.hint) from None
        except ValueError:
            lines = []
        try:
            first = json.loads(lines[0]) if lines else None
        except ValueError:
            first = None
        if not isinstance(first, dict) or first.keys() != self.head.keys():
            message = f"{path} holds no results of `{kind.command}`: they begin with a line that names {kind.names}"
            raise CuirError.of(kind.code, message, hint=kind.hint)
        if differs := [k for k in self.head if first[k] != self.head[k]]:
            raise CuirError.of(kind.code, f"{path} holds results of another run: other {', '.join(differs)}", hint=kind.hint)
        for number, line in enumerate(lines[1:], 2):
            try:
                row = json.loads(line)
            except ValueError:  # cut short
                continue
            if not isinstance(row, dict) or not isinstance(row.get(KEY), str):
                raise self.refuse(number, "no result of a task")
            self.rows[row[KEY]] = row
            self.lines[row[KEY]] = number

    def _make_write_error(self, error: OSError) -> CuirError:
        return CuirError.of("U108", f"cannot write {self.path}: {error.strerror}", hint=f"name another file with {self.kind.option}")


__all__ = ["Journal", "JournalKind"]
