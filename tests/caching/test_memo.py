"""Tables of results: limits, counters, weak tables, and the list of all."""

import importlib
import pkgutil

from hypothesis import given
from hypothesis import strategies as st

import cuir
from cuir.caching import Memo, WeakKeyMemo, WeakValueMemo, collect_statistics, memoize


def make(limit: int = 3) -> Memo[int, int]:
    return Memo("tests.table", key="an integer", invalidation="never", limit=limit)


def statistics(name: str) -> object:
    (result,) = [row for row in collect_statistics() if row.name == name]
    return result


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=60), st.integers(1, 5))
def test_a_table_is_a_bounded_dictionary(steps: list[tuple[bool, int]], limit: int) -> None:
    table, model, evicted, lookups = make(limit), {}, 0, 0
    for writes, key in steps:
        if writes:
            table[key] = key * 2
            model[key] = key * 2  # a dict keeps the place of a key that is written again
            if len(model) > limit:
                model.pop(next(iter(model)))
                evicted += 1
        else:
            lookups += 1
            assert table.get(key) == model.get(key)
    assert dict(table) == model and table.evictions == evicted and table.hits + table.misses == lookups


def test_statistics_add_up_tables_of_one_name_and_forget_dead_ones() -> None:
    item, second = make(), make()
    item[1], second[2] = 1, 2
    item.get(1), second.get(1)
    result = statistics("tests.table")
    assert (result.tables, result.entries, result.hits, result.misses, result.limit) == (2, 2, 1, 1, 3)  # type: ignore[attr-defined]
    del second
    assert statistics("tests.table").tables == 1  # type: ignore[attr-defined]


def test_weak_tables_drop_what_dies() -> None:
    class Thing:
        pass

    by_key: WeakKeyMemo[Thing, int] = WeakKeyMemo("tests.by_key", key="a thing", invalidation="it died")
    by_value: WeakValueMemo[int, Thing] = WeakValueMemo("tests.by_value", key="a number", invalidation="it died")
    thing = Thing()
    by_key[thing], by_value[1] = 1, thing
    assert statistics("tests.by_key").entries == statistics("tests.by_value").entries == 1  # type: ignore[attr-defined]
    del thing
    assert statistics("tests.by_key").entries == statistics("tests.by_value").entries == 0  # type: ignore[attr-defined]


def test_functions_are_listed_by_their_module() -> None:
    calls = []

    @memoize(2)
    def double(x: int) -> int:
        calls.append(x)
        return 2 * x

    assert [double(x) for x in (1, 1, 2, 3, 1)] == [2, 2, 4, 6, 2] and calls == [1, 2, 3, 1]
    item = next(row for row in collect_statistics() if row.name.endswith("double"))
    assert (item.hits, item.misses, item.entries, item.evictions) == (1, 4, 2, 2)


def test_every_table_has_its_own_name_and_a_line_in_the_page() -> None:
    from pathlib import Path

    for module in pkgutil.walk_packages(cuir.__path__, "cuir."):
        if module.name.split(".")[1] in ("flex", "variants", "checking", "syntax", "runtime") and not module.name.endswith("vllm"):
            importlib.import_module(module.name)
    page = (Path(cuir.__file__).parent.parent / "docs/caches.md").read_text(encoding="utf-8")
    rows = [row for row in cuir.debug.caches() if not row.name.startswith("tests.") and "<locals>" not in row.name]
    assert len(rows) >= 20
    assert not [row.name for row in rows if f"`{row.name}`" not in page]
    assert all(row.tables == 1 for row in rows if row.name.startswith("flex."))
    assert str(cuir.debug.caches()).splitlines()[0].split() == ["name", "tables", "entries", "limit", "hits", "misses", "evictions"]
