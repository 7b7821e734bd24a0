"""The text of loops over units of work: who hands the units out, what travels with them, where a plain loop stays.

The queue of units of work (TileQueue of cuir/lowering/queues.py), written as a program of the language: no schedule has a race or a deadlock.

The queue is the lowering's own, so no program says its barriers, and compute-sanitizer's racecheck takes its ring for a race (docs/verification.md).
One warp posts, three take; the first of these runs ahead where the queue has a barrier for that.
"""

from __future__ import annotations

import re

import pytest

import corpus
from cuir.checking.checker import check
from cuir.checking.resources import RESERVED
from cuir.explore import explore
from cuir.lowering import lower
from cuir.lowering.targets import target_of
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from tests.lowering.kernels import ALL, COMPUTE, LOAD, UNITS, corpus_kernel
from tests.strategies.typed import arguments


def text(body: str, dynamic: bool = True, head: str = UNITS) -> str:
    return lower(check(parse(head + body, "k.cuir"), consts={"DYNAMIC": dynamic})).source


def part(source: str, name: str) -> str:
    """The text of a role, or of the warp that hands out, without comments."""
    return re.sub(r"// .*", "", source.split(f"// ---- {name}")[1].split("// ----")[0])


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_spare_warp_decodes_and_the_roles_read(dynamic: bool) -> None:
    source = text(LOAD + COMPUTE, dynamic)
    hands, load, compute = (part(source, p) for p in ("a spare warp", "role load", "role compute"))
    assert hands.count("floordiv(") == 1 and "J[" in hands
    for role in (load, compute):
        assert not re.search(r"floordiv|floormod|/ unsigned|quotient|J\[", role)
        assert re.search(r"unit__\d+\[\d\]", role), "the words of a slot"
    assert ("atomicInc(counter" in hands) == dynamic == ("unsigned* __restrict__ counter" in source)
    assert ("+ int(gridDim.x))" in hands) != dynamic
    assert "atomicInc" not in load + compute


def test_a_chain_of_values_is_written_once_however_often_each_is_read() -> None:
    """An unrolled search: 40 values, each of which reads the one before twice."""
    chain = "            x0 = t\n" + "".join(f"            x{i + 1} = x{i} // n + x{i} % n\n" for i in range(40))
    body = COMPUTE.replace("            place = t // n\n", chain + "            place = x40\n")
    hands = part(text(LOAD + body), "a spare warp")
    assert len(re.findall(r"floordiv\(|quotient\(|/ unsigned\(n", hands)) == 40


def test_values_of_each_dtype_keep_their_bits() -> None:
    body = COMPUTE.replace("store(I[place], first)", "if odd:\n                store(I[place], first)")
    source = text(LOAD + body)
    hands, compute = part(source, "a spare warp"), part(source, "role compute")
    assert re.search(r"unit__\d+\[\d\] = __float_as_int\(", hands) and re.search(
        r"const float \w+ = __int_as_float\(unit__\d+\[\d\]\);", compute
    )
    assert re.search(r"const bool \w+ = unit__\d+\[\d\] != 0;", compute)


def test_only_what_branches_follow_from_is_made_uniform_and_only_by_whole_warps() -> None:
    source = text(LOAD + COMPUTE.replace("store(I[place], first)", "if odd:\n                store(I[place], first)"))
    compute = part(source, "role compute")
    matches = re.findall(r"(unit__\d+\[\d\]) = __shfl_sync", compute)
    odd = re.search(r"const bool \w+ = (unit__\d+\[\d\]) != 0", compute)
    assert odd and matches == [odd[1]]
    assert "__shfl_sync" not in part(source, "role load") and "take_ahead" in part(source, "role load")


def test_nothing_is_worked_out_for_the_unit_after_the_last() -> None:
    """It is posted, since the roles end by it; but what follows from it may lie outside of a tensor."""
    hands = part(text(LOAD + COMPUTE), "a spare warp")
    tested, posted = hands.index("< tile_count)"), hands.index(".post(")
    inside = hands[tested:posted]
    assert "J[" in inside and "J[" not in hands.replace(inside, "")
    assert re.match(r"\.post\(unit__\d+\);\s+if \(\w+ >= tile_count\) break;\s+queue__\d+\.reserve_ahead\(\);", hands[posted:])


def test_a_dynamic_unit_is_drawn_when_the_lanes_that_fetch_have_taken_the_one_before() -> None:
    separate = (
        LOAD.replace('"load"', '"more"').replace("empty", "freed").replace("full", "filled").replace("s)", "s2)").replace(" s,", " s2,")
    )
    head = UNITS.replace("    work", "    s2 = shared(f16, [64, 64])\n    filled, freed = mbarrier(1), mbarrier(1)\n    work")
    combination = COMPUTE.replace("full.wait(v % 2)", "full.wait(v % 2)\n            filled.wait(v % 2)").replace(
        "mma_async(s, s)", "mma_async(s, s2)"
    )
    for body, lanes in (
        (LOAD + COMPUTE, 1),
        (LOAD + separate + combination.replace("empty.arrive()", "empty.arrive()\n            freed.arrive()"), 2),
    ):
        source = text(body, head=head)
        assert "Slots<2, " in source and f"cuir::Bar::init(&slots->ahead, {lanes});" in source
        assert "take_ahead" not in part(source, "role compute")
    assert "Slots<4, " in text(LOAD + COMPUTE, False) and "_ahead(" not in part(text(LOAD + COMPUTE, False), "a spare warp")


def test_without_lanes_that_fetch_for_others_a_dynamic_unit_is_drawn_when_all_have_taken_the_one_before() -> None:
    for body in (LOAD, COMPUTE):
        source = text(body)
        assert "Slots<1, " in source and "ahead" not in source.split("__global__")[1]


def test_static_units_without_a_division_are_counted_by_each_worker() -> None:
    body = (
        LOAD.replace("t // n", "t * 3 + 1")
        + COMPUTE.split("            odd")[0].replace("t // n", "t * 3 + 1")
        + "            store(I[place], v)\n"
    )
    assert "TileQueue" not in text(body, False) and "t += int(gridDim.x)" in text(body, False)
    assert "TileQueue" in text(body, True)


def test_without_a_spare_warp_a_role_s_warp_hands_out_dynamic_units() -> None:
    source = text(ALL)
    role = part(source, "role all")
    assert "a spare warp" not in source and "if (warpgroup == 0 && warp == 0 && lane == 0)" in role and "atomicInc(counter" in role
    assert "TileQueue" not in text(ALL, False)


CLUSTER = UNITS.replace('arch="sm_90a"', 'arch="sm_90a", cluster=4')


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_ctas_of_a_cluster_work_on_the_same_units(dynamic: bool) -> None:
    """Dynamic numbers are drawn by the first CTA and sent to the others; static ones each CTA counts."""
    cuda = lower(check(parse(CLUSTER + LOAD + COMPUTE, "k.cuir"), consts={"DYNAMIC": dynamic}))
    hands = part(cuda.source, "a spare warp")
    assert re.search(r"for \(int (\w+) = int\(blockIdx.x\) / 4;; \1 = ", hands)
    assert ("cuir::Tickets<4> tickets" in hands) == ("store_shared_remote" in cuda.source) == dynamic
    assert re.search(r"= tickets__\d+\.next\(int\(gridDim.x\) / 4, tile_count\)" if dynamic else r"\+ int\(gridDim.x\) / 4\)", hands)
    assert ("cuir::Bar::init(&mail->full, 1); cuir::Bar::init(&mail->empty, 3);" in cuda.source) == dynamic
    assert cuda.counter == dynamic and cuda.cluster == 4
    offset, slots, words = (int(x) for x in re.search(r"Slots<(\d+), (\d+)>\*>\(smem \+ (\d+)\)", cuda.source).group(3, 1, 2))  # type: ignore[union-attr]
    assert cuda.shared_bytes == offset + slots * (16 + 4 * words) + 16 + (24 if dynamic else 0)
    assert "cta_rank" not in hands


def test_a_cluster_without_a_spare_warp_counts_for_itself() -> None:
    for dynamic in (True, False):
        cuda = lower(check(parse(CLUSTER + ALL), consts={"DYNAMIC": dynamic}))
        assert "TileQueue" not in cuda.source and "t += int(gridDim.x) / 4" in cuda.source
        assert any("handed out statically" in c for c in cuda.choices) == dynamic


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_choice_is_told_and_the_memory_counted(dynamic: bool) -> None:
    checked = check(parse(UNITS + LOAD + COMPUTE), consts={"DYNAMIC": dynamic})
    cuda = lower(checked)
    assert any("a spare warp works out" in c and "weight, " in c and c.startswith("line 5") for c in cuda.choices)
    offset, slots, words = (int(x) for x in re.search(r"Slots<(\d+), (\d+)>\*>\(smem \+ (\d+)\)", cuda.source).group(3, 1, 2))  # type: ignore[union-attr]
    assert offset % 16 == 0 and words % 4 == 0 and cuda.shared_bytes == offset + slots * (16 + 4 * words) + 16


def test_the_queue_fits_into_what_is_kept_for_it() -> None:
    """The checker has refused what leaves no room for the most that a slot may hold."""
    lines = "".join(f"            a{i} = t // {2 * i + 3}\n            store(I[{i}], a{i})\n" for i in range(40))
    for head in (UNITS, CLUSTER):
        for dynamic in (False, True):
            text = head + f'    with role("one", warps=1):\n        for t in work:\n{lines}'
            cuda = lower(check(parse(text), consts={"DYNAMIC": dynamic}))
            barriers = 16
            assert "unit__" in cuda.source and cuda.shared_bytes - cuda.checked.shared_bytes - barriers <= RESERVED


def test_the_expert_kernel_divides_in_one_warp() -> None:
    checked = corpus_kernel("flash_fwd_sm90.flash_fwd")
    source = lower(checked).source
    for name in ("load_k", "load_v", "compute"):
        assert not re.search(r"/ unsigned|% unsigned|quotient|inverse", part(source, f"role {name}"))
    assert "quotient(" in part(source, "a spare warp")


@pytest.mark.parametrize("cluster", [1, 2])
def test_what_handing_out_divides_by_is_worked_out_before_the_first_wait(cluster: int) -> None:
    """By the warp that needs it, behind a branch of its own."""
    program = parse(corpus.kernels()["decode_sm90"].read_text(encoding="utf-8"))
    source = lower(check(program, None, {"T": F16, "D": 64, "DV": 64, "CLUSTER": cluster})).source
    before, after = source.split("cute::cluster_wait();" if cluster > 1 else "__syncthreads();", 1)
    names = re.findall(r"unsigned (inverse\w*) = 0;", before)
    block = re.search(r"if \(warpgroup == \d && warp == \d\) \{([^}]*)\}", before)
    assert len(names) >= 3 and block and all(f"{name} = cuir::inverse(" in block[1] for name in names)
    assert "cuir::inverse(" not in after and all(f", {name})" in after for name in names)


def test_what_reads_memory_is_worked_out_where_it_was() -> None:
    """Numbers of a tensor are no scalars of the launch."""
    assert "J[" not in text(LOAD + COMPUTE).split("__syncthreads();")[0].split("extern")[-1]


UNITS_OF_QUEUE_PROTOCOL = 9  # posted: every slot of the largest queue is used again
TEXT = """\
@kernel(arch="sm_90a")
def queue(X: Global[f32, M, 32], Y: Global[f32, 3, M, 32], *, SLOTS: const = 2, AHEAD: const = False):
    unit = shared(f32, [SLOTS, 32, 32])
    full, empty, ahead = mbarrier(1, stages=SLOTS), mbarrier(3, stages=SLOTS), mbarrier(1)
    work = tiles(1)
    with role("post", warps=1):
        for t in work:
            for use in range(cdiv(M, 32)):
                s, phase = use % SLOTS, use // SLOTS % 2
                if use > 0:
                    if AHEAD:
                        ahead.wait((use - 1) % 2)
                    empty[s].wait(phase ^ 1)
                store(unit[s], X[use * 32 + rows(32), cols(32)])
                full[s].arrive()
    with role("take", warps=3) as w:
        for t in work:
            for use in range(cdiv(M, 32)):
                s, phase = use % SLOTS, use // SLOTS % 2
                full[s].wait(phase)
                x = load(unit[s])
                if AHEAD and w == 0:
                    ahead.arrive()
                empty[s].arrive()
                store(Y[w, use * 32 + rows(32), cols(32)], x)
"""
FAULTS = {
    "not reserved": ("empty[s].wait(phase ^ 1)\n                store", "store"),
    "given back unread": ("                x = load(unit[s])\n", ""),
    "an arrival too few": ("mbarrier(3, stages=SLOTS)", "mbarrier(2, stages=SLOTS)"),
    "not awaited": ("                full[s].wait(phase)\n", ""),
}


def list_codes(text: str, slots: int, ahead: bool) -> list[str]:
    """The codes of what is wrong."""
    checked = check(parse(text, "queue.cuir"), consts={"SLOTS": slots, "AHEAD": ahead})
    return [d.code for d in explore(checked, arguments(checked, {"M": 32 * UNITS_OF_QUEUE_PROTOCOL}, seed=0)).diagnostics]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_no_schedule_of_the_queue_goes_wrong(slots: int, ahead: bool) -> None:
    assert list_codes(TEXT, slots, ahead) == []


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_queue_with_a_fault_does(fault: str) -> None:
    old, new = FAULTS[fault]
    text = TEXT.replace(old, new)
    if fault == "given back unread":
        text = text.replace("empty[s].arrive()\n", "empty[s].arrive()\n                x = load(unit[s])\n")
    assert text != TEXT and list_codes(text, 2, False)


def test_the_queue_is_still_the_one_that_is_modelled() -> None:
    """Waits, arrivals and parities of the CUDA text, in its order: whoever changes them changes the program above."""
    text = target_of("sm_90a").render("cuir::TileQueue<1, 4> q(slots);", {})
    for line in (
        "void reserve() { wait(&slots->empty[use % SLOTS], use / SLOTS % 2 ^ 1); }",
        "void reserve_ahead() { wait(&slots->ahead, (use - 1) % 2); reserve(); }",
        "Bar::arrive(&slots->full[use++ % SLOTS]);",
        "wait(&slots->full[use % SLOTS], use / SLOTS % 2);",
        "read(unit); Bar::arrive(&slots->ahead); Bar::arrive(&slots->empty[use++ % SLOTS]);",
        "arrive_warp(&slots->empty[use++ % SLOTS], lane);",
    ):
        assert line in text, line
