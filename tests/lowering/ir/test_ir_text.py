"""The IR's text is read back as what it was, and what is no IR is refused."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.utils.exceptions import ParseError, VerifyException

from cuir.lowering.ir import ir_types as types
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_evaluator import evaluate
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.layouts.tile_layouts import PARTIAL
from cuir.syntax.types import BOOL, F32, I32
from tests.lowering.conftest import kernel
from tests.lowering.ir import cases
from tests.lowering.ir.test_ir_evaluator import differing

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of xDSL's parser


@pytest.mark.parametrize(
    "name", [f"{n} f16" for n in ("flash_fwd_over_v", "flash_fwd_sm80", "gemm", "flash_bwd", "decode", "combine", "expert cluster")]
)
def test_text_round_trip(name: str) -> None:
    """The same text again, and the same results."""
    case = cases.case(name)
    text = show(case.built)
    repeated = parse(text)
    assert show(repeated) == text
    actual, expected = case.fresh(), case.fresh()
    evaluate(case.built, expected, ctas=case.ctas)
    evaluate(repeated, actual, ctas=case.ctas)
    assert not differing(case.checked, actual, expected)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, BOOL),
        (False, BOOL),
        (-5, I32),
        (2**31 - 1, I32),
        (1e30, F32),
        (-1e-30, F32),
        (0.1, F32),
        (-0.0, F32),
        (float("inf"), F32),
        (float("-inf"), F32),
        (3.0, F32),
    ],
)
def test_constants(value: float, dtype: types.DType) -> None:
    ir = build(kernel("store(Y[0], scale)"))
    block = ir.roles[0].body.block
    assert block.first_op is not None
    block.insert_op_before(ops.constant(value, dtype), block.first_op)
    read = parse(show(ir)).roles[0].body.block.first_op
    assert isinstance(read, ops.Constant) and repr(read.value) == repr(value)


@pytest.mark.parametrize("text", ["mma.sync: operand B is not K-major", 'a "word", a \\ and a\nline', "größer", 'größer "als"', ""])
def test_marks_of_passes(text: str) -> None:
    """Flags and texts behind any operation, also behind one with regions."""
    ir = build(kernel("for i in range(n):\n    store(Y[0], scale)"))
    marked = [op for op in ir.walk() if op is not ir]
    for op in marked:
        op.attributes |= {"inlined": UnitAttr(), "reason": StringAttr(text)}
    read = parse(show(ir))
    assert show(read) == show(ir) and show(ir).count("attributes {inlined, reason = ") == len(marked)
    assert [op.attributes for op in read.walk() if op is not read] == [op.attributes for op in marked]


def test_types() -> None:
    """A layout is written where it is not the tile's natural one."""
    assert [str(types.tile(F32, *shape)) for shape in ((64, 8), (64, 1), (1, 8), (1, 1))] == [
        "!tile.reg<f32, 64, 8>",
        "!tile.reg<f32, 64, 1>",
        "!tile.reg<f32, 1, 8>",
        "!tile.reg<f32, 1, 1>",
    ]
    assert str(types.tile(F32, 64, 1, PARTIAL)) == "!tile.reg<f32, 64, 1, partial>"


WHOLE = """\
tile.kernel "k" arch="sm_90a" cluster=1 cluster_x=1 threads=128 {
  %n = tile.parameter "n" : !tile.scalar<i32>
  tile.role "all" workers=1 threads=128 registers=0 warpgroup=0 warp=0 {
  ^bb0(%w: !tile.scalar<i32>):
    %x = tile.constant 1.0 : !tile.scalar<f32>
    BODY
    tile.yield()
  }
  tile.yield()
}
"""


def test_the_frame_of_these_is_valid() -> None:
    assert parse(WHOLE.replace("BODY", '%y = tile.apply "+"(%x, %x) exact : !tile.scalar<f32>')).roles


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('%y = tile.apply "flip"(%x) : !tile.scalar<f32>', "there is no primitive `flip`"),
        ('tile.perform "flip"(place: %x)', "there is no primitive `flip`"),
        (
            "%y = tile.for %i = %n to %n carrying (%a = %x) {\n tile.yield(%i)\n }",
            "the yielded values of a loop have the types of what it carries: !tile.scalar<f32>",
        ),
        (
            "%y = tile.for %i = %n to %n carrying (%a = %x) {\n tile.yield()\n }",
            "the yielded values of a loop have the types of what it carries",
        ),
        (
            "tile.for %i = %n to %n {\n %z = tile.constant 1 : !tile.scalar<i32>\n }",
            "tile.constant terminates block in single-block region but is not a terminator",
        ),
        (
            "%y = tile.if %n {\n tile.yield(%x)\n } else {\n tile.yield(%n)\n }",
            "both regions of a branch end with tile.yield of its results' types",
        ),
    ],
)
def test_broken_ir_is_refused(body: str, message: str) -> None:
    with pytest.raises(VerifyException, match=message.replace("(", r"\(").replace(")", r"\)")):
        parse(WHOLE.replace("BODY", body))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%y = tile.constant 1 : !tile.scalar<i64>", "expected a dtype (f16, bf16, f8e4m3, f8e5m2, f32, i32, bool), found i64"),
        ('%y = tile.apply "+"(%x, %z) : !tile.scalar<f32>', "SSA value used before assignment"),
        (
            '%y = tile.apply "zeros"() : !tile.reg<f32, 64, 64, diagonal>',
            "expected a layout (full, rows, columns, one, partial, lanes, chunks, dealt, fours, eights), found diagonal",
        ),
        ("%x = tile.constant 2.0 : !tile.scalar<f32>", "SSA value %x is already defined"),
    ],
)
def test_broken_text_is_refused(body: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(WHOLE.replace("BODY", body))
    assert message in str(error.value)
