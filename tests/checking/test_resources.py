"""Layout of shared memory and of warps: no two arrays overlap, alignment, aliasing, packing of roles."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.checker import check
from cuir.ops.limits import count_pool_registers, list_architectures
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError

BODY = '    with role("all", warps=1):\n        x = 1\n'


def allocate(lines: list[str]) -> dict[str, tuple[int, int, bool]]:
    text = '@kernel(arch="sm_90a")\ndef k(X: Global[f32, M]):\n' + "".join(f"    {line}\n" for line in lines) + BODY
    return {a.name: (a.offset, a.nbytes, a.panelled) for a in check(parse(text)).shared.values()}


@given(
    st.lists(
        st.tuples(st.sampled_from(["f16", "f32", "i32"]), st.sampled_from([8, 16, 64]), st.sampled_from([1, 3, 8, 32, 64, 128])),
        min_size=1,
        max_size=5,
    )
)
def test_arrays_lie_apart_and_aligned(arrays: list[tuple[str, int, int]]) -> None:
    result = allocate([f"a{i} = shared({d}, [{r}, {c}])" for i, (d, r, c) in enumerate(arrays)])
    spans = sorted((offset, offset + size) for offset, size, _ in result.values())
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert all(offset % (1024 if panelled else 16) == 0 for offset, _, panelled in result.values())


def test_over_shares_bytes() -> None:
    result = allocate(["a = shared(f16, [2, 64, 64])", "b = shared(f16, [64, 64], over=a)", "c = shared(f16, [8, 64])"])
    assert result["b"][0] == result["a"][0] and result["c"][0] >= result["a"][1]


@pytest.mark.parametrize("line", ["b = shared(f16, [128, 64], over=a)", "b = shared(f16, [8, 64], over=c)"])
def test_over_must_fit(line: str) -> None:
    with pytest.raises(CuirError, match="M304"):
        allocate(["a = shared(f16, [64, 64])", "d = shared(i32, [4])", "c = shared(i32, [8, 40])", line])


def test_roles_of_warps_share_a_warpgroup_while_they_agree() -> None:
    text = '@kernel(arch="sm_90a")\ndef k(X: Global[f32, M]):\n'
    for name, size in (
        ("a", "warps=1, registers=40"),
        ("b", "warps=3, registers=40"),
        ("c", "warps=1, registers=40"),
        ("d", "warpgroups=2, registers=160"),
    ):
        text += f'    with role("{name}", {size}):\n        x = 1\n'
    checked = check(parse(text))
    assert [(r.warpgroup, r.warp) for r in checked.roles] == [(0, 0), (0, 1), (1, 0), (2, 0)] and checked.warpgroups == 4


@pytest.mark.parametrize(("threads", "each"), [(384, 168), (512, 128), (128, 255), (256, 255), (1024, 64)])
def test_register_pool_is_what_a_cta_is_launched_with(threads: int, each: int) -> None:
    assert count_pool_registers(threads) == each * threads


HUGE = """
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64]):
    {declared}
    with role("all", warpgroups=1):
        {body}
"""


@pytest.mark.parametrize("n", [10**5, 2_000_000_000, 2**31 - 1])
@pytest.mark.parametrize(
    ("declared", "body", "code"),
    [
        ("b = mbarrier(1, stages={n})", "b[0].arrive()", "M301"),
        ("b = mbarrier({n})", "b.arrive()", "M306"),
        ("b = named_barrier({n})", "b.sync()", "M306"),
        ("b = named_barrier(1, stages={n})", "b[0].sync()", "M303"),
        ("b = named_barrier(1, warps={n})", "b.sync()", "M306"),
        ("s = shared(f32, [{n}, 64, 64])", "sync()", "M301"),
        ("s = shared(f32, [{n}])", "sync()", "M301"),
        ("s = 1", "x = zeros(f32, [64, {n}])", "T176"),
        ("s = 1", "x = full(f32, [64, {n}], 1.0)", "T176"),
        ("s = 1", "x = zeros(f32, [64, 1]) + cast(cols({n}), f32)", "T176"),
        ("s = 1", "x = X[rows(64), cols({n})]", "T176"),
        ("s = 1", "x = load(X[0 : {n}, :])", "T176"),
    ],
)
def test_huge_numbers_are_one_plain_error_at_once(n: int, declared: str, body: str, code: str) -> None:
    """No allocation, no loop over them: a number is refused where the machine, or a tile, has no place for so many."""
    if (declared, n) == ("b = mbarrier({n})", 10**5):
        return  # an mbarrier counts so many
    with pytest.raises(CuirError) as caught:
        check(parse(HUGE.format(declared=declared.format(n=n), body=body.format(n=n))))
    assert [d.code for d in caught.value.diagnostics] == [code]


def test_a_kernel_has_so_many_mbarriers() -> None:
    text = HUGE.format(declared="b = mbarrier(1, stages={n})", body="b[0].arrive()")
    assert check(parse(text.format(n=1024))).barriers["b"].stages == 1024
    with pytest.raises(CuirError, match=r"M306.*at most 1024 mbarriers, found 1025"):
        check(parse(text.format(n=1025)))


EIGHT_BITS = """\
@kernel(arch="{arch}")
def k(X: Global[{dtype}, M, 64], Y: Global[f32, M, 64]):
    s = shared({array}, [64, 64])
    with role("all", warps=4):
        store(Y[rows(64), cols(64)], cast(X[rows(64), cols(64)], f32) + cast(cast(Y[rows(64), cols(64)], {cast}), f32))
"""


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("dtype", ("f8e4m3", "f8e5m2"))
def test_eight_bits_need_an_architecture_that_converts_them(dtype: str, place: int) -> None:
    dtypes = [dtype if place == i else "f16" for i in range(3)]
    text = EIGHT_BITS.format(arch="ARCH", dtype=dtypes[0], array=dtypes[1], cast=dtypes[2])
    for arch in list_architectures("narrow_floats"):
        check(parse(text.replace("ARCH", arch)))
    with pytest.raises(CuirError) as caught:
        check(parse(text.replace("ARCH", "sm_80")))
    (result,) = caught.value.diagnostics
    assert result.code == "S217" and dtype in result.message and result.span is not None
    assert result.span.line == (2, 3, 5)[place]
