"""The checker: what it accepts, and each error by code and position."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from cuir.arguments.binding import assume_consts
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.checking.prelude_functions import prelude
from cuir.syntax.nodes import Assign, Call, ExprStmt, For, If, Name, Node, Typed
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.types import BF16, F16, F32, I32, Scalar, TileType
from cuir.syntax.walk import walk
from cuir.text.diagnostics import CuirError
from tests.timing import idle_seconds

CORPUS = Path(__file__).parents[2] / "corpus"
FILES = sorted([*(CORPUS / "programs").glob("*.cuir"), *(CORPUS / "kernels").glob("*.cuir")])
EXTRA = {"decode": {"G": 8}, "global": {"L": 64, "R": 64, "g": 16}}

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f32, M], n: i32, scale: f32, *, C: const = 4):
    s = shared(f16, [2, 64, 64])
    full = mbarrier(1, stages=2)
    one = mbarrier(1)
    turn = named_barrier(1)
    work = tiles(cdiv(M, 64))
"""


def kernel(body: str, role: str = 'with role("all", warpgroups=1) as w:', head: str = HEAD) -> Checked:
    lines = "\n".join("        " + line for line in body.strip("\n").split("\n"))
    return check(parse(f"{head}    {role}\n{lines}\n", "k.cuir"))


def errors(body: str, **kw: str) -> list[tuple[str, int, int]]:
    with pytest.raises(CuirError) as caught:
        kernel(body, **kw)
    assert all(d.render() for d in caught.value.diagnostics)
    return [(d.code, d.span.line - 8, d.span.column - 8) for d in caught.value.diagnostics if d.span]


@pytest.mark.sweep
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_corpus_checks(path: Path) -> None:
    program = parse(path.read_text(), path.name)
    for name, k in program.kernels().items():
        inputs = {"decode": EXTRA["decode"], "flash_fwd": EXTRA["global"] if "global" in path.stem else {}}.get(name, {})
        checked = check(program, name, assume_consts(k, inputs))
        assert checked.roles and checked.threads % 128 == 0
        for role in checked.roles:
            for stmt in role.body:
                assert_flat(stmt, checked)


@pytest.mark.sweep
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_flat_node_stands_in_one_place_and_the_source_has_no_types(path: Path) -> None:
    program = parse(path.read_text(), path.name)
    before = pickle.dumps(program)
    for name, k in program.kernels().items():
        inputs = {"decode": EXTRA["decode"], "flash_fwd": EXTRA["global"] if "global" in path.stem else {}}.get(name, {})
        checked = check(program, name, assume_consts(k, inputs))
        flat = [n for s in (*checked.declarations, *(s for r in checked.roles for s in r.body)) for n in walk(s)]
        assert len({id(n) for n in flat}) == len(flat)
        assert all(checked.find_call(n) is not None for n in flat if isinstance(n, Call) and n.func != Name("range"))
    source = [n for tree in (program, prelude()) for n in walk(tree) if isinstance(n, Typed)]
    assert not any({"type", "bound", "place"} & vars(n).keys() for n in source)
    assert pickle.dumps(program) == before


def assert_flat(node: Node, checked: Checked) -> None:
    """Assert the properties of flat kernels that checked.py promises."""
    for n in walk(node):
        assert type(n).__name__ not in ("Tuple", "Return", "With", "AugAssign")
        if isinstance(n, Assign):
            assert len(n.targets) == 1 and checked.find_type(n.value) is not None
        if isinstance(n, ExprStmt):
            assert isinstance(n.value, Call) and checked.find_call(n.value) is not None
        if isinstance(n, If):
            assert checked.type_of(n.cond).dtype.name == "bool"


def test_expert_kernel_in_time() -> None:
    path = CORPUS / "kernels" / "flash_fwd_sm90.cuir"
    parse("A = 1\n")  # the grammar is built once a process
    text = path.read_text()

    def parse_and_check(turn: int) -> Checked:
        return check(parse(f"{text}# {turn}\n", path.name), None, {"T": F16, "D": 128})  # a text that was not parsed before

    assert idle_seconds(parse_and_check) < 0.12
    checked = parse_and_check(0)
    assert [(r.name, r.warpgroup, r.warp, r.threads) for r in checked.roles] == [
        ("load_k", 0, 0, 32),
        ("load_v", 0, 1, 32),
        ("compute", 1, 0, 128),
    ]
    assert checked.barriers["k_full"].arrivers == "load_k" and checked.barriers["k_empty"].arrivers == "compute"
    assert {t.name for t in checked.tensors if t.written} == {"O", "LSE"}


def test_types_of_literals() -> None:
    checked = kernel("x = zeros(f16, [64, 8]) + 1\ny = 1\nz = 2.0 * 3\nu = where(x > 0, x, 0.0)\nv = 1 - zeros(f32, [64, 8])")
    role = checked.roles[0]
    assert role.locals["x"] == role.locals["u"] == TileType(F16, 64, 8)
    assert role.locals["v"] == TileType(F32, 64, 8)
    assert role.locals.get("z", Scalar(F32)) == Scalar(F32) and role.locals.get("y", Scalar(I32)) == Scalar(I32)


def test_consts_specialise() -> None:
    text = HEAD.replace("C: const = 4", "T: const, C: const = 4, FLAG: const = True").replace("X: Global[f16", "X: Global[T")
    text += '    with role("all", warps=1):\n        if FLAG:\n            x = cast(X[rows(16), 0], f32)\n        else:\n            x = n + 1\n'
    program = parse(text)
    assert check(program, None, {"T": BF16}).roles[0].locals == {"x": TileType(F32, 16, 1)}
    assert check(program, None, {"T": BF16, "FLAG": False}).roles[0].locals == {"x": Scalar(I32)}
    assert check(program).consts == {"T": F16, "C": 4, "FLAG": True}  # the usual dtype
    open_ = parse(text.replace("FLAG: const = True", "FLAG: const"))
    with pytest.raises(CuirError) as caught:
        check(open_)
    assert [d.code for d in caught.value.diagnostics] == ["N112"]
    for consts, code in (({"T": 3}, "T103"), ({"T": F16, "C": True}, "T103"), ({"T": F16, "Z": 1}, "N111")):
        with pytest.raises(CuirError) as caught:
            check(program, None, consts)
        assert [d.code for d in caught.value.diagnostics] == [code]


def test_all_errors_are_collected() -> None:
    assert errors("a = nothing\nb = 1 + 2.5 * n\nwork.wait(0)\nif n:\n    sync(1)") == [
        ("N101", 1, 5),
        ("T111", 2, 15),
        ("N119", 3, 1),
        ("T116", 4, 4),
        ("N118", 5, 5),
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x = undefined_name", ("N101", 1, 5)),
        ("x = rowz(64)", ("N105", 1, 5)),
        ("if n > 0:\n    x = 1.5 * scale\ny = x", ("N103", 3, 5)),
        ("for i in range(n):\n    x = i\ny = x + 1", ("N103", 3, 5)),
        ("x = zeros(f32, [64, 8])\nx = 1.0", ("T150", 2, 1)),
        ("x = n / 2", ("T114", 1, 5)),
        ("x = n and True", ("T115", 1, 5)),
        ("x = cast(n, f32) + n", ("T111", 1, 20)),
        ("x = zeros(f32, [64, 8]) + zeros(f32, [64, 16])", ("T113", 1, 27)),
        ("x = zeros(f32, [63, 8])", ("T158", 1, 5)),
        ("x = zeros(f32, [64, 7])", ("T159", 1, 5)),
        ("x = zeros(f32, [n, 8])", ("T102", 1, 16)),
        ("x = zeros(f32, [64])", ("T105", 1, 16)),
        ("x = Y[n]\nz = X[n, 0]", ("T118", 2, 5)),
        ("x = Y[0, 0]", ("T166", 1, 5)),
        ("x = load(X[n : n + 64, 0 : n])", ("T160", 1, 10)),
        ("x = load(s)", ("T107", 1, 10)),
        ("x = load(s[0, 4 : 12])", ("T174", 1, 10)),
        ("x = load(s[2])", ("T171", 1, 12)),
        ("store(s[0], zeros(f32, [64, 64]))", ("T123", 1, 13)),
        ("acc = zeros(f32, [64, 64])\nstore(acc, zeros(f32, [64, 64]))", ("T165", 2, 7)),
        ("store(scale, 1.0)", ("T165", 1, 7)),
        ("x = mma_async(s[0], s[1])\ny = mma_async(s[0], zeros(f16, [64, 64]))", ("T131", 2, 21)),
        ("x = mma_async(zeros(f32, [64, 64]), s[1])", ("T132", 1, 15)),
        ("x = mma_async(zeros(f16, [64, 32]), s[1])", ("T134", 1, 37)),
        ("x = mma_async(s[0], s[1], zeros(f32, [64, 8]))", ("T136", 1, 27)),
        ("copy_async(X[n : n + 64, :], s[0], full)", ("T129", 1, 36)),
        ("copy_async(X[n : n + 32, :], s[0], one)", ("T125", 1, 12)),
        ("copy_async(X[rows(64), cols(32)], s[0])", ("T125", 1, 12)),
        ("copy_async(X[rows(64), cols(64)], s[0].T)", ("T120", 1, 35)),
        ("copy_async(X[rows(64), cols(64)], s[0], one)", ("T108", 1, 12)),
        ("copy_async(Y[rows(64)], s[0])", ("T124", 1, 25)),
        ("full.wait(0)", ("T145", 1, 1)),
        ("one.wait(2)", ("T146", 1, 10)),
        ("one.sync()", ("N120", 1, 1)),
        ("full[2].wait(0)", ("T169", 1, 6)),
        ("q = mbarrier(1)", ("S218", 1, 5)),
        ("n + 1", ("S204", 1, 1)),
        ("a, b = n, n, n", ("T151", 1, 1)),
        ("for x in n:\n    sync()", ("S220", 1, 10)),
        ("for x in tiles(n):\n    sync()", ("S220", 1, 10)),
        ("for x in cdiv(n, 2):\n    sync()", ("S220", 1, 10)),
        ("x = where(n > 0, 1.0, 2.0)", ("T141", 1, 11)),
        ("x = exp2(n)", ("T142", 1, 10)),
        ("x = cols(64).T", ("T119", 1, 5)),
        ("x = 1 // 0", ("T154", 1, 5)),
        ("x = row_max(zeros(f16, [64, 8]))", ("T142", 1, 13)),
        ("copy_wait(-1)", ("T103", 1, 11)),
        ("store_wait(-1)", ("T103", 1, 12)),
        ('one.arrive(cluster="z")', ("T103", 1, 20)),
        ("one.arrive(cluster=2)", ("T103", 1, 20)),
        ("store_wait(True)", ("T103", 1, 12)),
        ("store_wait(n)", ("T102", 1, 12)),
        ("x = exp2(mma_async(s[0], s[1]))", ("S222", 1, 10)),
        ("x = mma_async(s[0], s[1]) * 2.0", ("S222", 1, 5)),
        ("x = mma_async(s[0], s[1], mma_async(s[0], s[1]))", ("S222", 1, 27)),
        ("x = zeros(f32, [64, 8], 3)", ("N118", 1, 5)),
        ("x = full(f32, [64, 8], valu=3.0)", ("N116", 1, 24)),
    ],
)
def test_error(body: str, expected: tuple[str, int, int]) -> None:
    assert errors(body) == [expected]


def test_warps_cannot_issue_wgmma() -> None:
    assert [e[0] for e in errors("x = mma_async(s[0], s[1])", role='with role("all", warps=1):')] == ["S219"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("[2, 64, 64]", "[32, 64, 64]"), "M301"),
        (("[2, 64, 64]", "[2, 60, 64]"), "T162"),
        (("mbarrier(1, stages=2)", "mbarrier(0, stages=2)"), "T104"),
        (('arch="sm_90a"', 'arch="sm_70"'), "S207"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=16'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=0'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=True'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=1.0'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=M'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=n // 2'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=2 // 0'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=nobody'), "S208"),
        (('arch="sm_90a"', 'arch="sm_80", cluster=2'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=(4, 4)'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=(2, 0)'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=(-2, -2)'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=(2, M)'), "S208"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=(2, 2, 2)'), "P012"),
        (('arch="sm_90a"', 'arch="sm_90a", cluster=[2, 2]'), "P012"),
        (("    one = mbarrier(1)", "    one = mbarrier(1)\n    s = mbarrier(1)"), "S209"),
        (("    one = mbarrier(1)", "    one = tiles(1)"), "S210"),
        (("named_barrier(1)", "named_barrier(1, stages=16)"), "M303"),
        (("X: Global[f16", "X: Global[f8"), "T156"),
        (("n: i32", "M: i32"), "N113"),
    ],
)
def test_declarations(change: tuple[str, str], code: str) -> None:
    body = "x = 1.5 * scale" if code != "S210" else "sync()"
    with pytest.raises(CuirError) as caught:
        kernel(body, head=HEAD.replace(*change))
    assert code in [d.code for d in caught.value.diagnostics]


ROLES = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M]):
    b = mbarrier(1)
    with role("a", warps=1{}):
        b.arrive()
    with role("b", warpgroups={}{}):
        {}
"""


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ((", registers=24", 2, ", registers=240", "b.wait(0)"), None),
        ((", registers=32", 2, ", registers=240", "b.wait(0)"), "M302"),  # the pool is what the CTA is launched with, not 64K
        ((", registers=25", 2, ", registers=240", "b.wait(0)"), "M302"),
        (("", 2, ", registers=240", "b.wait(0)"), "S216"),
        (("", 8, "", "b.wait(0)"), "M305"),
        (("", 1, "", "b.arrive()"), "S215"),
    ],
)
def test_roles(parts: tuple[object, ...], code: str | None) -> None:
    text = ROLES.format(*parts)
    if code is None:
        assert check(parse(text)).warpgroups == 3
        return
    with pytest.raises(CuirError) as caught:
        check(parse(text))
    assert {d.code for d in caught.value.diagnostics} == {code}


@pytest.mark.parametrize(
    ("barrier", "second", "code"),
    [
        ("named_barrier(2, warps=5)", "warpgroups=1", None),
        ("named_barrier(2)", "warpgroups=1", "S215"),  # the hardware counts warps
        ("named_barrier(2)", "warps=1", None),
        ("named_barrier(2, warps=2)", "warps=1", None),
        ("named_barrier(2, warps=0)", "warpgroups=1", "T104"),
    ],
)
def test_roles_that_meet_at_a_named_barrier(barrier: str, second: str, code: str | None) -> None:
    text = f"""
@kernel(arch="sm_90a")
def k(X: Global[f32, M]):
    b = {barrier}
    with role("a", warps=1):
        b.arrive()
    with role("b", {second}):
        b.sync()
"""
    if code is None:
        assert check(parse(text)).barriers["b"].warps == (5 if "groups" in second else 2)
        return
    with pytest.raises(CuirError) as caught:
        check(parse(text))
    assert caught.value.diagnostics[0].code == code


def test_a_name_with_two_types_is_told_once() -> None:
    with pytest.raises(CuirError) as caught:
        kernel("x = zeros(f32, [64, 8])\nx = cast(x, i32)\ny = x + 1\nz = cast(y, f32)")
    assert [d.code for d in caught.value.diagnostics] == ["T150"]


def test_an_error_in_a_func_names_the_call() -> None:
    text = "@func\ndef f(x):\n    return x + 1.5\n\n" + HEAD + '    with role("all", warps=1):\n        y = f(n)\n'
    with pytest.raises(CuirError) as caught:
        check(parse(text, "k.cuir"))
    (d,) = caught.value.diagnostics
    assert d.code == "T111" and d.span and d.span.line == 3 and d.span.via and d.span.via.line == 13
    assert "in the call `f(n)`" in d.render()


def test_for_keeps_its_loop() -> None:
    (loop,) = kernel("for t in work:\n    sync()").roles[0].body
    assert isinstance(loop, For)


def test_dtypes_by_any_name_and_a_short_repr() -> None:
    program = parse((CORPUS / "kernels" / "flash_fwd_sm90.cuir").read_text())
    for dtype in (F16, "f16", torch.float16):
        checked = check(program, None, {"T": dtype, "D": 64})  # type: ignore[dict-item]
        assert checked.consts["T"] == F16 and len(repr(checked)) < 600 and "load_k (1 of 32 threads)" in repr(checked)


@pytest.mark.parametrize(
    ("written", "inputs", "size"),
    [
        ("C", {}, 4),
        ("C", {"C": 1}, 1),
        ("C // 2", {"C": 6}, 3),
        ("min(C, 8)", {"C": 9}, 8),
        ("2 if C > 4 else 1", {"C": 8}, 2),
        ("PAIR", {}, 2),
    ],
)
def test_the_size_of_a_cluster_is_an_expression_of_consts(written: str, inputs: dict[str, int], size: int) -> None:
    head = HEAD.replace('"sm_90a"', f'"sm_90a", cluster={written}')
    program = parse("PAIR = 2\n" + head + '    with role("all", warps=1):\n        one.arrive(cluster=True)\n')
    assert check(program, consts=inputs).cluster == size
    assert parse(show(program)) == program and f"cluster={written}" in show(program)


@pytest.mark.parametrize(
    ("workers", "shape", "code", "nearest"),
    [
        ("warpgroups", "63, 8", "T158", "[64, 8]"),
        ("warpgroups", "8, 60", "T158", "[64, 64]"),
        ("warpgroups", "1, 60", "T159", "[1, 64]"),
        ("warps", "17, 8", "T158", "[32, 8]"),
    ],
)
def test_a_shape_that_registers_do_not_have_is_told_the_next_one(workers: str, shape: str, code: str, nearest: str) -> None:
    with pytest.raises(CuirError) as caught:
        check(parse(f'@kernel(arch="sm_90a")\ndef f():\n    with role("a", {workers}=1):\n        x = zeros(f32, [{shape}])\n'))
    (result,) = caught.value.diagnostics
    assert result.code == code and result.hint is not None
    assert "rows of a tile are 1 or a multiple of 64" in result.hint and result.hint.endswith(f"the next larger one is {nearest}")


@pytest.mark.parametrize(
    ("consts", "code", "hint"),
    [
        ({"CLUSTER": 3}, "T104", "here WG = BM // CLUSTER // 64, BM = 128, CLUSTER = 3: choose others"),
        ({"BM": 100}, "T162", "here D = 128, DV = 128, BM = 100, QBUF = 2, CLUSTER = 1, STAGED = True: choose others"),
    ],
)
def test_consts_that_give_unusable_sizes_are_one_error_that_names_them(consts: dict[str, int], code: str, hint: str) -> None:
    from corpus import kernels

    with pytest.raises(CuirError) as caught:
        check(parse(kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")), None, {"T": "f16", "D": 128, **consts})
    (result,) = caught.value.diagnostics
    assert (result.code, result.hint) == (code, hint)
