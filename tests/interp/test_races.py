"""Truth tables: every placement of write, fence, arrive, wait and read, against a Boolean oracle of happens-before."""

from __future__ import annotations

import itertools

import pytest
import torch

from cuir.interp import Schedule

SCHEDULES = [Schedule.in_order(), Schedule.adversarial("reverse"), Schedule.random(1), Schedule.adversarial("engines_first")]


def two_workers(writer: list[str], reader: list[str]) -> str:
    """Two warpgroups; barrier `go` is arrived at by the first, `back` by the second."""
    lines = [
        '@kernel(arch="sm_90a")',
        "def two(X: Global[f16, 64, 64], Y: Global[f32, 64, 64]):",
        "    sA, sB = shared(f16, [64, 64]), shared(f16, [64, 64])",
        "    go, back, full = mbarrier(1), mbarrier(1), mbarrier(1)",
        '    with role("writer", warpgroups=1):',
        "        x = load(X[0 : 64, :])",
        *(f"        {s}" for s in writer),
        '    with role("reader", warpgroups=1):',
        "        store(sB, zeros(f16, [64, 64]))",
        "        fence_async()",
        *(f"        {s}" for s in reader),
        "        store(Y[0 : 64, :], r)",
    ]
    return "\n".join(lines) + "\n"


def outcomes(execute, text: str) -> set[str]:
    """The codes over all schedules; "" for a clean run."""
    results = set()
    for schedule in SCHEDULES:
        arguments = {"X": torch.ones(64, 64, dtype=torch.float16), "Y": torch.zeros(64, 64)}
        results.add(execute(text, arguments, grid=1, schedule=schedule).code)
    return results


WRITE, FENCE, ARRIVE, WAIT = "store(sA, x)", "fence_async()", "go.arrive()", "go.wait(0)"
PRODUCT = ["r = mma_async(sA, sB.T)", "mma_wait(r)"]
LOAD = ["r = cast(load(sA), f32)"]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "order", list(itertools.permutations([WRITE, FENCE, ARRIVE])) + list(itertools.permutations([WRITE, ARRIVE])), ids=" < ".join
)
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("fences", [True, False], ids=["reader fences", "reader does not"])
@pytest.mark.parametrize("read", [PRODUCT, LOAD], ids=["async read", "ordinary read"])
def test_ordinary_write_then_read(execute, order: tuple[str, ...], waits: bool, fences: bool, read: list[str]) -> None:
    """Ordered iff write < arrive and the reader waits; an engine also needs the writer's own fence in between."""
    reader = [*([WAIT] if waits else []), *([FENCE] if fences else []), *read]
    result = outcomes(execute, two_workers(list(order), reader))
    ordered = waits and order.index(WRITE) < order.index(ARRIVE)
    fenced = FENCE in order and order.index(WRITE) < order.index(FENCE) < order.index(ARRIVE)
    if not ordered:
        assert result <= {"R401", "M401"}, "a read that is not ordered is found in every schedule"
    elif read is PRODUCT and not fenced:
        assert result == {"R403"}
    else:
        assert result == {""}


@pytest.mark.parametrize("reader", list(itertools.permutations(["full.wait(0)", "r = mma_async(sA, sB.T)", "mma_wait(r)"])), ids=" < ".join)
def test_copy_then_product(execute, reader: tuple[str, ...]) -> None:
    """Only the wait on the copy's barrier orders a read after it; mma_wait before the product waits for nothing."""
    if reader.index("mma_wait(r)") < reader.index("r = mma_async(sA, sB.T)"):
        return  # the name is not bound yet: the checker's business
    result = outcomes(execute, two_workers(["full.expect(nbytes(sA))", "copy_async(X[0 : 64, :], sA, full)"], list(reader)))
    if reader.index("full.wait(0)") < reader.index("r = mma_async(sA, sB.T)"):
        assert result == {""}
    else:
        assert result <= {"R401", "M401"}


@pytest.mark.parametrize(
    "release", list(itertools.permutations(["r = mma_async(sA, sB.T)", "mma_wait(r)", "back.arrive()"])), ids=" < ".join
)
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("over", ["store(sA, x)", "copy_async(X[0 : 64, :], sA, full)"])
def test_product_then_overwrite(execute, release: tuple[str, ...], waits: bool, over: str) -> None:
    """A stage may be written again iff it was released after the wait that retires the product, and the writer waits for the release."""
    if release.index("mma_wait(r)") < release.index("r = mma_async(sA, sB.T)"):
        return
    writer = [
        WRITE,
        FENCE,
        ARRIVE,
        *(["back.wait(0)"] if waits else []),
        *(["full.expect(nbytes(sA))"] if "copy" in over else []),
        over,
        *(["full.wait(0)"] if "copy" in over else []),
    ]
    result = outcomes(execute, two_workers(writer, [WAIT, *release]))
    if waits and release.index("mma_wait(r)") < release.index("back.arrive()"):
        assert result == {""}
    else:
        assert result <= {"R401", "R403"} and "" not in result


@pytest.mark.parametrize("place", range(4))
def test_bulk_store_then_overwrite(execute, place: int) -> None:
    """store_wait must lie between a bulk store and the next write of its source."""
    steps = ["store(sA, x)", "fence_async()", "store_async(sA, X[0 : 64, :])", "store(sA, x)"]
    steps.insert(place + 1, "store_wait()")
    result = outcomes(execute, two_workers([*steps, "fence_async()", ARRIVE], [WAIT, *LOAD]))
    assert result == ({""} if place == 2 else {"R401"})


@pytest.mark.parametrize(("commit", "wait", "result"), [(True, 0, {""}), (True, 1, {"R401"}), (False, 0, {"R401"}), (True, None, {"R401"})])
def test_cp_async(execute, commit: bool, wait: int | None, result: set[str]) -> None:
    """A cp.async copy is an ordinary write once its group is waited for."""
    steps = ["copy_async(X[0 : 64, :], sA)", *(["copy_commit()"] if commit else []), *([f"copy_wait({wait})"] if wait is not None else [])]
    tail = ["copy_commit()", "copy_wait(0)"]
    assert outcomes(execute, two_workers([*steps, "y = load(sA)", *tail, ARRIVE], [WAIT, *LOAD])) == result
    fenced = two_workers([*steps[:1], *tail, FENCE, ARRIVE], [WAIT, *PRODUCT])
    assert outcomes(execute, fenced) == {""}
    assert outcomes(execute, fenced.replace(f"        {FENCE}\n        {ARRIVE}", f"        {ARRIVE}")) == {"R403"}


@pytest.mark.parametrize("middle", [True, False])
def test_knowledge_is_transitive(execute, middle: bool) -> None:
    """writer -> go -> middle -> back -> reader orders the write before the read; without the middle's wait it does not."""
    text = two_workers([WRITE, FENCE, ARRIVE], ["back.wait(0)", *PRODUCT])
    step = '    with role("middle", warps=1):\n' + ("        go.wait(0)\n" if middle else "") + "        back.arrive()\n"
    text = text.replace('    with role("reader"', step + '    with role("reader"')
    result = outcomes(execute, text)
    assert result == {""} if middle else result <= {"R401", "M401"}


@pytest.mark.parametrize(("shift", "result"), [(0, {""}), (8, {"R401", "M401"})])
def test_halves_of_an_array_are_apart(execute, shift: int, result: set[str]) -> None:
    """Two workers on rows of their own need no barrier; eight rows further they do."""
    text = f"""\
@kernel(arch="sm_90a")
def own(X: Global[f32, 64, 64], Y: Global[f32, 64, 64]):
    sA = shared(f32, [64, 64])
    with role("all", warps=2) as w:
        store(sA[w * 32 : w * 32 + 32], load(X[w * 32 : w * 32 + 32, :]))
        store(Y[w * 32 : w * 32 + 32, :], load(sA[w * {32 - shift} + {shift} - w * {shift} : w * {32 - shift} + {shift} - w * {shift} + 32]))
"""
    x, y = torch.randn(64, 64), torch.zeros(64, 64)
    codes = {execute(text, {"X": x, "Y": y}, grid=1, schedule=s).code for s in SCHEDULES}
    assert codes <= result and (shift or torch.equal(x, y))


def test_named_barrier_orders_its_role(execute) -> None:
    text = """\
@kernel(arch="sm_90a")
def swap(X: Global[f32, 64, 64], Y: Global[f32, 64, 64]):
    sA = shared(f32, [64, 64])
    both = named_barrier(2)
    with role("all", warps=2) as w:
        store(sA[w * 32 : w * 32 + 32], load(X[w * 32 : w * 32 + 32, :]))
        both.sync()
        store(Y[w * 32 : w * 32 + 32, :], load(sA[(1 - w) * 32 : (1 - w) * 32 + 32]))
"""
    x, y = torch.randn(64, 64), torch.zeros(64, 64)
    ran = execute(text, {"X": x, "Y": y})
    assert ran.error is None and torch.equal(y, torch.cat([x[32:], x[:32]]))
    joined = execute(text.replace("both.sync()", "sync()"), {"X": x, "Y": y})
    assert joined.error is None
    lost = execute(text.replace("        both.sync()\n", ""), {"X": x, "Y": y})
    assert lost.code in ("R401", "M401")
    arrives = execute(text.replace("both.sync()", "both.arrive()"), {"X": x, "Y": y})
    assert arrives.code in ("R401", "M401")
