"""Correspondence of lines: the program, its CUDA, and the instructions of its machine code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..lowering import Cuda
from ..lowering.lowered import KERNEL
from ..runtime.sass import Instruction
from ..text.source import Source, Span


@dataclass(frozen=True)
class MappedLine:
    """Line of a text.

    Attributes:
        number: As a reader counts; an offset for an instruction.
        lines: Numbers of the program's lines that it belongs to.
    """

    number: str
    text: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class CodeMap:
    """Lines of the program, of the CUDA text before its kernel and from it on, and instructions."""

    program: Sequence[MappedLine]
    prelude: Sequence[MappedLine]
    cuda: Sequence[MappedLine]
    sass: Sequence[MappedLine] = ()


def map_code(cuda: Cuda, instructions: Sequence[Instruction] = ()) -> CodeMap:
    """Return the correspondence of a lowered kernel.

    instructions: those of its cubin, where it was disassembled.
    """
    source = cuda.checked.origin.span.source
    of_cuda = {number: line for number, span in cuda.line_map.items() if (line := find_line(span, source)) is not None}
    texts = cuda.source.splitlines()
    begin = next((i for i, text in enumerate(texts) if text.startswith(KERNEL.split(" void")[0])), 0)
    lines = [MappedLine(str(i), text, (of_cuda[i],) if i in of_cuda else ()) for i, text in enumerate(texts, 1)]
    sass = [MappedLine(f"{i.offset:04x}", i.text, _find_statement(i, of_cuda)) for i in instructions]
    return CodeMap(list_program(source), lines[:begin], lines[begin:], sass)


def list_program(source: Source) -> list[MappedLine]:
    """Return the lines of a program, each of which belongs to itself."""
    texts = source.text.rstrip("\n").split("\n")
    return [MappedLine(str(n), text, (n,)) for n, text in enumerate(texts, source.first_line)]


def find_line(span: Span | None, source: Source) -> int | None:
    """Return the line of a span in a source; of an inlined function from elsewhere, that of the call."""
    while span is not None:
        if span.source == source:
            return span.line
        span = span.via
    return None


def _find_statement(i: Instruction, of_cuda: Mapping[int, int]) -> tuple[int, ...]:
    """Return the line of the innermost statement that an instruction comes from."""
    return next(((of_cuda[n],) for n in i.lines if n in of_cuda), ())
