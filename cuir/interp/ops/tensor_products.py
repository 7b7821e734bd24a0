"""Products into tensor memory, their commits, and loads of tensor memory."""

from __future__ import annotations

import torch

from ...syntax.types import SharedView
from ..access_records import Actor
from ..actions import Action, Product
from ..async_groups import commit_queue, enter_queue, find_queue_event
from ..causes import make_unwritten_fault
from ..code import Site
from ..element_places import compile_barrier_place, compile_shared_place
from ..engines import compute_product, issue, performs
from ..machine import GO, POINT, Evaluate, Machine, Worker
from ..memory import Shared, SharedRef
from ..ops_registry import runs
from ..races import touch
from ..values import require_uniform
from .async_memory import commit_name
from .compute import mma_wait

runs("tensor_memory")(Shared)  # beside the arrays in shared memory
runs("load_wait")(mma_wait)


class ProductInto(Action):
    """A product a @ b into tensor memory, added to what is there or not."""

    def __init__(self, actor: Actor, target: SharedRef, a: SharedRef, b: SharedRef, adds: bool):
        super().__init__(actor)
        self.target, self.a, self.b, self.adds = target, a, b, adds


class Load(Product):
    """A load of tensor memory: a value in flight, as that of a product."""

    def __init__(self, actor: Actor, number: int, source: SharedRef):
        super().__init__(actor, number, source, source, None, ())
        self.source = source


@performs(ProductInto)
def _multiply(m: Machine, p: ProductInto) -> None:
    if not m.launch.data:
        return
    target = p.target.values(m.shared)
    before = target.clone() if p.adds else None
    target.copy_(compute_product(p.a.values(m.shared), p.b.values(m.shared), before, m.lanes, m.launch.noise))


@performs(Load)
def _load(m: Machine, load: Load) -> None:
    load.value = load.source.values(m.shared).clone() if m.launch.data else torch.zeros((1, 1, 1))


@runs("mma_into")
def mma_into(site: Site) -> Evaluate:
    acc, a, b = (compile_shared_place(site, arg) for arg in ("acc", "a", "b"))
    accumulate = site.value("accumulate") if site.has("accumulate") else lambda w: True
    op, span, view = site.op, site.span, site.type("a")
    assert isinstance(view, SharedView)

    def run(w: Worker) -> int:
        m, refs, adds = w.m, {"a": a(w), "b": b(w), "acc": acc(w)}, bool(require_uniform(accumulate(w)))
        actor, target = w.engine("product", span, "the product"), refs["acc"]
        if adds and m.launch.detect and m.shared[target.cta].is_undefined(target):
            raise make_unwritten_fault(m, actor, target)
        touch(op, w, actor, refs, find_queue_event(w), "a wait for the phase of an mma_commit behind it")
        product = ProductInto(actor, target, refs["a"], refs["b"], adds)
        enter_queue(w, product)
        m.shared[target.cta].wrote(target)
        m.count("products")
        m.launch.area += m.lanes * view.dims[1] * target.nbytes / 4 / 128**3
        issue(m, product)
        return GO

    return run


@runs("mma_commit")
def mma_commit(site: Site) -> Evaluate:
    bar, span = compile_barrier_place(site, "bar"), site.span

    def run(w: Worker) -> int:
        target = bar(w)
        w.copies += 1
        issue(w.m, commit_queue(w, w.engine("commit", span, "the commit"), target, commit_name(w)))
        return POINT

    return run


@runs("load_async")
def load_async(site: Site) -> Evaluate:
    view, op, span = compile_shared_place(site, "view"), site.op, site.span

    def run(w: Worker) -> Product:
        m, ref = w.m, view(w)
        actor = w.engine("load", span, "the load")
        m.products += 1
        load = Load(actor, m.products, ref)
        load.records = touch(op, w, actor, {"view": ref}, None, f"{w.label} calls load_wait for it")
        w.groups.products.append(load)
        issue(m, load)
        return load

    return run
