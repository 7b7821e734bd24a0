"""An order of basic blocks in which a loop stands before what follows it: who runs the first block waits for the others.

Threads that diverged meet again at the post-dominator, since it comes behind both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def find_components(nodes: Sequence[int], successors: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected components of a part of a graph, in topological order (Tarjan's, without recursion)."""
    inside, index, low = set(nodes), dict[int, int](), dict[int, int]()
    stack: list[int] = []
    on_stack: set[int] = set()
    components: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(successors[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in inside:
                    continue
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(successors[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    components.append(sorted(stack[at:]))
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
    return components[::-1]


def order_blocks(count: int, successors: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the place of each block in the order."""
    predecessors: dict[int, list[int]] = {n: [] for n in range(count)}
    for node, targets in successors.items():
        for target in targets:
            predecessors[target].append(node)
    order: list[int] = []
    work: list[list[int]] = [list(range(count))]
    while work:
        nodes = work.pop()
        if len(nodes) == 1:
            order += nodes
            continue
        parts = find_components(nodes, successors)
        if len(parts) > 1:
            work += parts[::-1]
            continue
        members = set(nodes)
        head = next((n for n in nodes if any(p not in members for p in predecessors[n])), nodes[0])
        rest = [n for n in nodes if n != head]
        order.append(head)
        work += find_components(rest, successors)[::-1]
    places = [0] * count
    for place, node in enumerate(order):
        places[node] = place
    return places
