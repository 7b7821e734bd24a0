"""Kernels in Pallas for Mosaic GPU, each right or with one fault (jax 0.10.2).

They have the loader, the rings and the barriers of corpus/faulty's clean programs.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILE, STAGES, BLOCKS, READERS, RAGGED = 64, 2, 5, 2, 20

Kernel = tuple[Any, dict[str, Any], tuple[int, ...], int]  # body, scratch memory, shape of the output, warpgroups


def double(fault: str, readers: int = 1) -> Kernel:
    """Return Y = X + X, tile by tile: a loader, a ring of stages, readers that store tiles by bulk stores."""
    blocks = STAGES if "two blocks" in fault else BLOCKS
    ragged = RAGGED if fault == "ragged" else 0
    stages = 32 if fault == "shared memory" else STAGES

    def load(x: Any, ring: Any, full: Any, empty: Any) -> None:
        if fault == "registers":
            plgpu.set_max_registers(24, action="decrease")

        @pl.loop(0, blocks)
        def _(j: Any) -> None:
            first = 2 * stages if fault == "lap behind" else blocks if fault == "loader does not wait" else stages

            @pl.when(j >= first)
            def _() -> None:
                plgpu.barrier_wait(empty.at[jax.lax.rem(j, stages)])

            block = blocks - 1 - j if fault == "other order" else j
            plgpu.copy_gmem_to_smem(x.at[pl.ds(block * TILE, TILE)], ring.at[jax.lax.rem(j, stages)], full.at[jax.lax.rem(j, stages)])

        if fault not in ("lap behind", "loader does not wait"):

            @pl.loop(max(blocks - stages, 0), blocks)  # the interpreter demands waits for the last releases as well
            def _(j: Any) -> None:
                plgpu.barrier_wait(empty.at[jax.lax.rem(j, stages)])

    def release(empty: Any, reader: Any) -> None:
        if fault == "never released":
            return
        if fault == "one reader releases":
            pl.when(reader == 0)(lambda: plgpu.barrier_arrive(empty))
            return
        plgpu.barrier_arrive(empty)
        if fault == "released twice":
            plgpu.barrier_arrive(empty)

    def read(y: Any, ring: Any, out: Any, full: Any, empty: Any, reader: Any) -> None:
        if fault == "registers":
            plgpu.set_max_registers(256, action="increase")

        @pl.loop(0, blocks + 1 if fault == "one block more" else blocks)
        def _(j: Any) -> None:
            stage = jax.lax.rem(j, stages)
            if not fault.startswith("no wait"):
                plgpu.barrier_wait(full.at[stage])
            if fault == "released early":
                release(empty.at[stage], reader)
            x = ring[jax.lax.rem(j + 1, stages) if fault == "other stage" else stage]
            if fault != "released early":
                release(empty.at[stage], reader)
            if fault != "no store wait":
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            out[...] = x + out[...] if fault == "never written" else x + x + x if fault == "wrong value" else x + x
            if fault != "no fence":
                plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out, y.at[pl.ds(j * TILE, TILE)])

        plgpu.wait_smem_to_gmem(0)

    def body(x: Any, y: Any, ring: Any, out: Any, full: Any, empty: Any) -> None:
        worker = jax.lax.axis_index("wg")
        pl.when(worker == 0)(lambda: load(x, ring, full, empty))
        for i in range(readers):
            pl.when(worker == 1 + i)(
                lambda i=i: read(y.at[i] if readers > 1 else y, ring, out.at[i] if readers > 1 else out, full, empty, i)
            )

    def overlaid(x: Any, y: Any, pair: Any, full: Any, empty: Any) -> None:
        body(x, y, pair[0], pair[1], full, empty)

    tile = (readers,) * (readers > 1) + (TILE, TILE)
    memory = {"ring": plgpu.SMEM((stages, TILE, TILE), jnp.float16), "out": plgpu.SMEM(tile, jnp.float16)}
    if fault == "aliased":
        memory = {"both": plgpu.RefUnion(*memory.values())}
    arrivals = 2 if fault == "counts two" else 1 if fault == "one reader releases" else readers
    barriers = {"full": plgpu.Barrier(num_barriers=stages), "empty": plgpu.Barrier(num_arrivals=arrivals, num_barriers=stages)}
    rows = (readers,) * (readers > 1) + (blocks * TILE - ragged,)
    return overlaid if fault == "aliased" else body, memory | barriers, (*rows, TILE), 1 + readers


def product(fault: str) -> Kernel:
    """Return C = A B, summed over blocks that a loader brings."""

    def load(a: Any, b: Any, ring_a: Any, ring_b: Any, full: Any, empty: Any) -> None:
        @pl.loop(0, BLOCKS)
        def _(j: Any) -> None:
            stage = jax.lax.rem(j, STAGES)
            pl.when(j >= STAGES)(lambda: plgpu.barrier_wait(empty.at[stage]))
            plgpu.copy_gmem_to_smem(a.at[:, pl.ds(j * TILE, TILE)], ring_a.at[stage], full.at[stage])
            plgpu.copy_gmem_to_smem(b.at[pl.ds(j * TILE, TILE)], ring_b.at[stage], full.at[stage])

        @pl.loop(BLOCKS - STAGES, BLOCKS)
        def _(j: Any) -> None:
            plgpu.barrier_wait(empty.at[jax.lax.rem(j, STAGES)])

    def multiply(c: Any, ring_a: Any, ring_b: Any, full: Any, empty: Any) -> None:
        def sums(acc: Any) -> Any:
            @pl.loop(0, BLOCKS)
            def _(j: Any) -> None:
                stage = jax.lax.rem(j, STAGES)
                plgpu.barrier_wait(full.at[stage])
                plgpu.wgmma(acc, ring_a.at[stage], ring_b.at[stage])
                if fault == "overwritten":
                    ring_a[stage] = ring_a[stage] + ring_a[stage]
                if fault not in ("released early", "no product wait"):
                    plgpu.wgmma_wait(0)
                plgpu.barrier_arrive(empty.at[stage])
                if fault == "released early":
                    plgpu.wgmma_wait(0)

            return plgpu.wgmma_accumulator_load(acc, wait_n=None if fault == "no product wait" else 0)

        c[...] = pl.run_scoped(sums, plgpu.ACC((TILE, TILE), jnp.float32))

    def body(a: Any, b: Any, c: Any, ring_a: Any, ring_b: Any, full: Any, empty: Any) -> None:
        worker = jax.lax.axis_index("wg")
        pl.when(worker == 0)(lambda: load(a, b, ring_a, ring_b, full, empty))
        pl.when(worker == 1)(lambda: multiply(c, ring_a, ring_b, full, empty))

    ring = plgpu.SMEM((STAGES, TILE, TILE), jnp.float16, transforms=(plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)))
    full = plgpu.Barrier(num_arrivals=1 if fault == "one copy of two" else 2, num_barriers=STAGES)
    scratch = {"ring_a": ring, "ring_b": ring, "full": full, "empty": plgpu.Barrier(num_barriers=STAGES)}
    return body, scratch, (TILE, TILE), 2


def writers(fault: str) -> Kernel:
    """Return a kernel in which three warpgroups write a part each, and a fourth reads the parts.

    The writers arrive at one barrier, for which the reader waits.
    """
    parts = 1 if "first part" in fault else 3

    def body(x: Any, y: Any, part: Any, ready: Any) -> None:
        worker = jax.lax.axis_index("wg")

        @pl.when(worker < 3)
        def _() -> None:
            part[worker] = x[pl.ds(worker * TILE, TILE)]
            plgpu.barrier_arrive(ready)

        @pl.when(worker == 3)
        def _() -> None:
            plgpu.barrier_wait(ready)
            for i in range(parts):
                y[i] = part[i]

    arrivals = 2 if "counts two" in fault else 3
    scratch = {"part": plgpu.SMEM((3, TILE, TILE), jnp.float16), "ready": plgpu.Barrier(num_arrivals=arrivals)}
    return body, scratch, (parts, TILE, TILE), 4
