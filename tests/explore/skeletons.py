"""Small skeletons made directly, and all their interleavings without any reduction: what the exploration is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from cuir.explore.execution import Execution
from cuir.explore.skeleton import NOW, Bar, Fence, Landing, Region, Retire, Skeleton, Step, Touch, Trace
from cuir.text.source import Source, Span

SPAN = Span(Source("k", "text"), 1, 1, 1, 5)
BYTES = 64


def skeleton(bars: Sequence[tuple[int, bool]], workers: Sequence[Sequence[tuple[Any, ...]]]) -> Skeleton:
    """Barriers as (count, named); workers as lists, each of a warp, of ("wait", bar, parity), ("arrive", bar, copies expected), ("copy", bar, region), ("sync", bar), ("named", bar),
    ("read", region), ("write", region), ("fence",), ("product", region), ("retire",). Regions are 64 bytes each, all defined."""
    result = Skeleton(0, 1, None, False)
    result.bars = [Bar(f"b{n}", count, count, SPAN, named) for n, (count, named) in enumerate(bars)]
    result.regions = [Region(0, ((BYTES * n, BYTES * n + BYTES),)) for n in range(3)]
    result.aliases = {"x": ()}
    for number, ops in enumerate(workers):
        trace, engines = Trace(f"w{number}", False, 1), 0
        late: list[int] = []
        for op in ops:
            kind = op[0]
            if kind == "wait":
                trace.steps.append(Step("wait", SPAN, (op[1],), op[2]))
            elif kind == "arrive":
                trace.steps.append(Step("arrive", SPAN, (op[1],), BYTES * op[2]))
            elif kind == "copy":
                landing = Landing(len(result.landings), f"copy {len(result.landings)}", number, (engines,), op[1], BYTES, SPAN)
                engines += 1
                result.landings.append(landing)
                trace.steps.append(Step("copy", SPAN, (), 0, (landing,), [_touch(op[2], "write", "async", engines - 1, True)]))
            elif kind == "sync":
                trace.steps += [Step("join", SPAN, (op[1],)), Step("pass", SPAN, (op[1],))]
            elif kind == "named":
                trace.steps.append(Step("named arrive", SPAN, (op[1],)))
            elif kind == "fence":
                trace.add_local(Fence())
            elif kind == "product":
                trace.add_local(_touch(op[1], "read", "async", engines, False))
                late.append(engines)
                engines += 1
            elif kind == "retire":
                trace.add_local(Retire(tuple(late)))
            else:
                trace.add_local(_touch(op[1], kind, "generic", NOW, False))
        result.workers.append(trace)
    result.connect()
    return result


def _touch(region: int, mode: str, proxy: str, engine: int, point: bool) -> Touch:
    return Touch(region, mode, proxy, engine, SPAN, f"r{region}", "the engine", "its wait", point)


def interleavings(skeleton: Skeleton, most: int) -> Iterator[Execution] | None:
    """Every complete execution, in every order; None if there are more than `most`."""
    results: list[Execution] = []
    stack: list[tuple[int, ...]] = [()]
    while stack:
        path = stack.pop()
        run = Execution(skeleton)
        for agent in path:
            run.step(agent)
        able = [] if run.stopped else run.agents()
        if not able:
            if not run.stopped:
                run.end()
            results.append(run)
            if len(results) > most:
                return None
        stack.extend((*path, agent) for agent in able)
    return iter(results)


_OPS = st.one_of(
    st.tuples(st.just("wait"), st.integers(0, 1), st.integers(0, 1)),
    st.tuples(st.just("arrive"), st.integers(0, 1), st.sampled_from([0, 0, 1, 2])),
    st.tuples(st.just("copy"), st.integers(0, 1), st.integers(0, 2)),
    st.tuples(st.just("sync"), st.just(2)),
    st.tuples(st.just("named"), st.just(2)),
    st.tuples(st.sampled_from(["read", "write", "product"]), st.integers(0, 2)),
    st.sampled_from([("fence",), ("retire",)]),
)
SKELETONS = st.builds(
    lambda a, b, workers: skeleton([(a, False), (b, False), (2, True)], workers),
    st.integers(1, 3),
    st.integers(1, 2),
    st.lists(st.lists(_OPS, min_size=1, max_size=4), min_size=2, max_size=4),
)
_BARE = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("sync"), st.just(2)),
    st.tuples(st.just("named"), st.just(2)),
    st.tuples(st.just("read"), st.integers(0, 2)),
)
CALM = st.builds(
    lambda a, b, workers: skeleton([(a, False), (b, False), (2, True)], workers),
    st.integers(2, 3),
    st.integers(1, 3),
    st.lists(st.lists(_BARE, min_size=1, max_size=4), min_size=2, max_size=4),
)
