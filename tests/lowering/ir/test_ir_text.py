"""The IR's text is read back as what it was, and what is no IR is refused."""

from __future__ import annotations

import functools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.utils.exceptions import ParseError, VerifyException

from cuir.checking.checker import check
from cuir.lowering.ir import ir_types as types
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_evaluator import evaluate
from cuir.lowering.ir.ir_text import State, parse, read, show, show_file
from cuir.lowering.layouts.tile_layouts import PARTIAL
from cuir.syntax.parser import parse as parse_program
from cuir.syntax.types import BOOL, F32, I32
from cuir.text.diagnostics import CuirError
from cuir.text.source import Span
from tests.lowering.conftest import kernel
from tests.lowering.ir import cases
from tests.lowering.ir.test_ir_evaluator import differing

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of xDSL's parser


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "name", [f"{n} f16" for n in ("flash_fwd_over_v", "flash_fwd_warps", "gemm", "flash_bwd", "decode", "combine", "expert cluster")]
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


# ---- files
INLINED = """\
@func
def twice(x):
    y = x + x
    return y

@kernel(arch="sm_90a")
def k(X: Global[f32, 64], Y: Global[f32, 64], n: i32):
    s, full = shared(f32, [64, 64]), mbarrier(2)
    with role("größe", warpgroups=1):
        i = twice(n)
        j = twice(i)
        for t in range(i + j):
            store(Y[rows(64)], X[rows(64)] + cast(t, f32))
"""


def test_a_file_holds_the_places_of_the_program() -> None:
    kernel = build(check(parse_program(INLINED, 'a "b".cuir')))
    text = show_file(kernel, State(3, "p", ("a", "b")))
    repeated, state = read(text, "x.ir")
    assert state == State(3, "p", ("a", "b")) and show_file(repeated, state) == text
    assert kernel.places is not None and repeated.places is not None

    def describe(span: Span | None) -> list[tuple[object, ...]]:
        own = [] if span is None else [(span.source.name, span.line, span.column, span.end_line, span.end_column, span.text())]
        return own + ([] if span is None or span.via is None else describe(span.via))

    spans = [
        (describe(kernel.places.find(a)), describe(repeated.places.find(b))) for a, b in zip(kernel.walk(), repeated.walk(), strict=True)
    ]
    assert all(a == b for a, b in spans)
    assert max(len(a) for a, _ in spans) == 2 and sum(bool(a) for a, _ in spans) > 10


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("after 3", "after three", (1, 7), "Expected integer literal"),
        ("tile.kernel", "tile.colonel", (4, 14), "Operation tile.colonel is not registered"),
        ('role "größe" workers=1', 'role "größe"', (15, 21), "Expected"),
        ('"store"(place', '"shop"(place', None, "there is no primitive `shop`"),
        ("places {", "spaces {", None, "expected the end of the file, found spaces"),
        ("via 0:10", "via 7:10", None, "expected the number of a file, less than 1, found 7"),
        ("tile.scalar<i32>", "tile.scalar<i64>", None, "expected a dtype"),
    ],
)
def test_a_file_that_is_no_ir_is_refused_at_its_place(old: str, new: str, place: tuple[int, int] | None, message: str) -> None:
    text = inlined_text()
    assert old in text
    with pytest.raises(CuirError) as caught:
        read(text.replace(old, new, 1), "x.ir")
    (result,) = caught.value.diagnostics
    assert result.code == "L014" and message in result.message and result.span is not None and str(result.span).startswith("x.ir:")
    line = text.replace(old, new, 1).split("\n")[result.span.line - 1]
    assert new.split()[0].strip('"').split("(")[0] in line or place is not None
    assert place is None or (result.span.line, result.span.column) == place


@functools.cache
def inlined_text() -> str:
    return show_file(build(check(parse_program(INLINED, "k.cuir"))), State(3, "p"))


@settings(max_examples=25)
@given(st.data())
def test_damaged_files_are_read_or_refused(data: st.DataObject) -> None:
    """Whatever words are lost, doubled or exchanged, nothing but a named error comes out."""
    words = re.split(r"(\W)", inlined_text())
    for _ in range(data.draw(st.integers(1, 3))):
        i, j = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
        words[i : i + 1] = data.draw(st.sampled_from([[], [words[i]] * 2, [words[j]], ["\x00"], ['"']]))
    try:
        kernel, _ = read("".join(words))
    except CuirError as error:
        assert [d.code for d in error.diagnostics] == ["L014"] and error.diagnostics[0].span is not None
    else:
        kernel.verify()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%y = tile.constant 1 : !tile.scalar<i64>", "expected a dtype (f16, bf16, f8e4m3, f8e5m2, f32, i32, bool), found i64"),
        ('%y = tile.apply "+"(%x, %z) : !tile.scalar<f32>', "SSA value used before assignment"),
        (
            '%y = tile.apply "zeros"() : !tile.reg<f32, 64, 64, diagonal>',
            "expected a layout (full, rows, columns, one, partial, lanes, chunks, dealt, fours, words, eights), found diagonal",
        ),
        ("%x = tile.constant 2.0 : !tile.scalar<f32>", "SSA value %x is already defined"),
    ],
)
def test_broken_text_is_refused(body: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(WHOLE.replace("BODY", body))
    assert message in str(error.value)
