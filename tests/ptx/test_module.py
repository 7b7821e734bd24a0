"""PTX to instructions: operands, scopes of inline assembly, places with the calls that they were inlined through."""

from __future__ import annotations

import pytest

from cuir.ptx.module import Address, FloatNumber, entries, read_entry, read_module
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


MODULE = """.version 9.0
.target sm_80
.address_size 64

.extern .func  (.param .b32 func_retval0) vprintf
(
	.param .b64 vprintf_param_0
)
;
.const .align 4 .b8 table[8] = {0, 0, 128, 63, 1};
.global .align 4 .u32 counter = 5;
.global .align 8 .u64 pointer[2] = {0, table};
.extern .shared .align 16 .b8 dynamic[];
.global .f32 half = 0f3F000000;
.weak .func  (.param .align 8 .b8 result[16]) helper(
	.param .b32 helper_param_0,
	.param .align 4 .b8 helper_param_1[12]
)
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<4>;
	.loc	1 5 0
	{ // a scope
	.reg .b32 temp;
	.param .b32 param0;
	st.param.b32 	[param0+0], %r1;
	}
	ret;
}
	// .globl	kernel
.visible .entry kernel(
	.param .u64 .ptr .global .align 4 kernel_param_0,
	.param .f32 kernel_param_1
)
.maxntid 128, 2, 1
{
	.reg .f32 	%f<2>;
	.shared .align 4 .b8 kept[64];
	.local .align 16 .b8 	depot[112];
	.pragma "nounroll";
$L_brx: .branchtargets
	$L1,
	$L2;
	@%p1 brx.idx 	%r1, $L_brx;
$L1:
	mov.f64 	%fd1, 0d3FF0000000000000;
$L2:
	ret;
}
	.section	.debug_str { $L__info: .b8 95 }
"""


def test_a_module_has_functions_variables_and_registers() -> None:
    module = read_module(MODULE)
    assert (module.target, list(module.functions), module.declared) == ("sm_80", ["helper", "kernel"], ("vprintf",))
    helper, kernel = module.functions.values()
    assert not helper.is_entry and kernel.is_entry and kernel.threads == (128, 2, 1) and not kernel.required
    assert [(v.name, v.size, v.alignment) for v in helper.parameters] == [("helper_param_0", 4, 4), ("helper_param_1", 12, 4)]
    assert [(v.name, v.size, v.alignment) for v in helper.results] == [("result", 16, 8)]
    assert [(v.name, v.type, v.size) for v in kernel.parameters] == [("kernel_param_0", "u64", 8), ("kernel_param_1", "f32", 4)]
    assert helper.registers == {"%p0": "pred", "%p1": "pred", "%p2": "pred"} | {f"%r{i}": "b32" for i in range(4)} | {"temp@1": "b32"}
    assert [(v.name, v.space, v.size) for v in kernel.variables] == [("kept", "shared", 64), ("depot", "local", 112)]
    assert helper.variables[0].name == "param0@1" and helper.instructions[0].operands[0] == Address("param0@1", 0)


def test_variables_of_a_module_have_their_bytes() -> None:
    variables = read_module(MODULE).variables
    assert variables["table"].data == bytes([0, 0, 128, 63, 1, 0, 0, 0]) and variables["table"].space == "const"
    assert variables["counter"].data == (5).to_bytes(4, "little") and variables["half"].data == bytes([0, 0, 0, 63])
    assert variables["pointer"].symbols == ((8, "table"),) and variables["pointer"].size == 16
    assert variables["dynamic"].size is None and variables["dynamic"].alignment == 16


def test_instructions_know_their_line_and_branches_their_targets() -> None:
    branch, number, end = read_module(MODULE).functions["kernel"].instructions
    assert MODULE.splitlines()[branch.line - 1].strip().startswith("@%p1 brx.idx")
    assert branch.targets == ("$L1", "$L2") and branch.guard == ("%p1", True)
    assert number.operands[1] == FloatNumber(0x3FF0000000000000, 64) and end.labels == ("$L2",)
