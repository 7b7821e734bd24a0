"""PTX to instructions: operands, scopes of inline assembly, places with the calls that they were inlined through."""

from __future__ import annotations

import pytest

from cuir.ptx.module import Address, FloatNumber, entries, read_entry
from cuir.text.diagnostics import CuirError
from tests.llm.ptx.kernels import entry


def test_operands_are_registers_numbers_addresses_vectors_and_pairs() -> None:
    result = entry(
        "ld.shared.v2.u32 {%r1, %r2}, [%r3+-8];\nshfl.sync.idx.b32 %r4|%p1, %r1, 0, 31, -1;\nmov.f32 %f1, 0f3F800000;\n@!%p1 bra $L1;\n$L1:\nret;"
    )
    load, shuffle, number, branch, end = result.instructions
    assert load.operands == (("%r1", "%r2"), Address("%r3", -8))
    assert shuffle.operands == (("%r4", "%p1"), "%r1", 0, 31, -1)
    assert number.operands == ("%f1", FloatNumber(0x3F800000, 32))
    assert branch.guard == ("%p1", False) and end.labels == ("$L1",)


def test_names_that_inline_assembly_declares_are_its_own() -> None:
    body = "{\n.reg .pred P1;\nLAB:\nmbarrier.try_wait.parity.shared::cta.b64 P1, [%r1], 0;\n@P1 bra DONE;\nbra LAB;\nDONE:\n}\n"
    result = entry(body + body + "ret;").instructions
    first, second = result[0], result[3]
    assert first.operands[0] != second.operands[0] and first.labels != second.labels
    assert result[2].operands == first.labels and result[1].operands == result[3].labels[:1]  # the end of one is the begin of the other


def test_a_place_has_the_calls_that_it_was_inlined_through() -> None:
    text = (
        ".visible .entry k()\n{\n.loc 1 9 3\n.loc 2 5 1, function_name $L__info_string0, inlined_at 1 9 3\n.loc 2 7 2, function_name $L__info_string0, inlined_at 2 5 1\n"
        'ret;\n}\n.file 1 "/a/k.cu"\n.file 2 "/a/h.h"\n.section .debug_str\n{\n$L__info_string0:\n.b8 95,90,49,102,118,0\n}\n'
    )
    (only,) = read_entry(text, "k").instructions
    assert [(f.path, f.line, f.function) for f in only.chain] == [("/a/h.h", 7, "_Z1fv"), ("/a/h.h", 5, "_Z1fv"), ("/a/k.cu", 9, "")]
    assert entries(text) == ["k"]


def test_what_is_no_ptx_is_an_error_for_people() -> None:
    with pytest.raises(CuirError) as error:
        entry("mov.u32 %r1 %r2;")
    assert error.value.diagnostics[0].code == "O123"
