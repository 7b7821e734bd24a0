"""Attention as a call gets it, beside the newest kernels of others on a Hopper GPU, in bf16.

    python -m benchmarks.newest_peers --out rows.jsonl              # all rows; --rows backward decode for some
    python -m benchmarks.newest_peers --table rows.jsonl            # no GPU: the table of what was measured

A call of ours gets the setting that a user's call gets. Contenders take turns, and every result is checked against
float64. Bursts: medians of CUDA events with a flushed L2 cache. Sustained: wall time of calls in flight one after
another, with a warm L2 cache. FlashAttention-3's backward pass has no bursts, since JAX launches it. Calls of decoding
are CUDA graphs; cuDNN has contiguous keys there, ours also pages. Over latent vectors (MLA), FlashMLA and ours have
pages of 64, FlashAttention-3 has contiguous ones; selected vectors are contiguous, and FlashMLA's call is
flash_mla_sparse_fwd. A peer that is not installed has the reason in its row.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import cuir
from benchmarks import flash_attention_3_jax as jax_kernels
from benchmarks.old_and_new import as_they_come
from benchmarks.recorded import command, read_rows
from cuir.performance.suites import decode_suite, packed_suite
from cuir.performance.suites.backward_suite import prepare_gradients
from cuir.performance.suites.cell_benchmark import OURS, Cell, Timing
from cuir.performance.suites.contest import contest, judge_of
from cuir.performance.suites.peers import contenders, flashinfer_latent, not_installed
from cuir.performance.timing.gpu import versions
from cuir.performance.timing.problem import Shape, compute_expectation, compute_expected_gradients, count_kept_pairs, make_tensors
from cuir.performance.timing.timing_protocol import Call, capture_graph, median_ms
from cuir.spec.specification import Mod, Specification
from cuir.text.markdown import table

GROUPS = ("backward", "packed", "dims", "decode", "documents", "latent", "selected")
DTYPE, TOKENS, MILLISECONDS = "bf16", 16384, 100.0
PACKAGES = (
    "flash-attn-4",
    "nvidia-cudnn-frontend",
    "flash-attn3-jax",
    "tokenspeed-fa3",
    "tokenspeed-flashmla",
    "fa3-fwd",
)  # whose versions the head names
HEADS = ((32, 32), (64, 8))  # query heads, key heads
LATENT, LATENT_PAGE = 512, 64  # columns of values; tokens
LATENT_8_BITS = "causal_8_bits"  # our cache is e4m3; peers have the same numbers in bf16
LATENT_PEERS = {"flash_mla": "flash_mla", "fa3": "fa3_fwd_interface"}  # their modules


@dataclass(frozen=True)
class Row:
    """Problem to measure: the mask, documents or layout of keys by name, the shape, and the peers."""

    group: str
    mode: str  # forward, backward, packed, packed backward, decode
    variant: str
    shape: Shape
    peers: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Calls by contender, the judge of their results, and the work of a millisecond at rate 1 of the unit."""

    calls: Mapping[str, Call]
    judge: Callable[[Any], tuple[float, str]]
    unit: str
    work: float
    prepare: Callable[[Call], Call] = lambda call: call


def list_rows() -> Iterator[Row]:
    """Yield the rows, group by group."""
    for variant, D in itertools.product(("documents", "lognormal"), (128, 64)):
        yield Row("backward", "backward", variant, Shape(2, 32, 32, 8192, 8192, D), ("cudnn_flex",))
    for heads, n in itertools.product(HEADS, (1024, 2048, 4096, 8192, 16384)):
        yield Row("backward", "backward", "causal", Shape(TOKENS // n, *heads, n, n, 128), ("fa3", "fa4"))
    for documents, D in itertools.product(("lognormal", "equal_4096", "equal_512"), (128, 64)):
        yield Row("packed", "packed backward", documents, Shape(1, 32, 32, 32768, 32768, D), ("varlen_attn",))
    for heads, documents in ((HEADS[1], "lognormal"), (HEADS[0], "one_long")):
        yield Row("packed", "packed backward", documents, Shape(1, *heads, 32768, 32768, 128), ("varlen_attn",))
    for D, heads, documents in itertools.product((128, 64), HEADS, ("lognormal", "equal_4096", "equal_512", "equal_32768", "one_long")):
        yield Row("packed", "packed", documents, Shape(1, *heads, 32768, 32768, D), ("fa3",))
    for D, H, n in (
        (256, 16, 16384),
        (192, 16, 16384),
        (256, 32, 16384),
        (192, 32, 16384),
        (256, 16, 4096),
        (192, 16, 4096),
        (256, 16, 8192),
    ):
        yield Row("dims", "forward", "causal", Shape(TOKENS // n, H, H, n, n, D), ("fa3", "cudnn"))
    for B, N, layouts in ((8, 131072, 3), (16, 32768, 3), (4, 65536, 2), (128, 4096, 2)):
        for layout in ("full", "pages_64", "pages_16")[:layouts]:
            yield Row("decode", "decode", layout, Shape(B, *HEADS[1], 1, N, 128), ("cudnn",))
    for D in (128, 64):
        yield Row("documents", "forward", "captured_documents", Shape(2, 32, 32, 8192, 8192, D), ("flex",))
    for B, H, M, N in (
        (128, 128, 1, 4096),
        (64, 128, 1, 8192),
        (128, 128, 2, 4096),
        (16, 128, 1, 32768),
        (1, 128, 1, 8192),
        (1, 128, 1, 131072),
        (128, 128, 1, 1024),
        (64, 64, 1, 4096),
        (128, 16, 1, 8192),
        (128, 8, 1, 8192),
    ):
        for variant in ("causal", LATENT_8_BITS):
            yield Row("latent", "latent", variant, Shape(B, H, 1, M, N, 576), tuple(LATENT_PEERS))
    for H, M, N, count in (
        (128, 4096, 8192, 2048),
        (128, 4096, 65536, 2048),
        (128, 4096, 32768, 512),
        (64, 4096, 8192, 2048),
        (128, 128, 8192, 2048),
        (16, 128, 8192, 2048),
        (128, 1, 8192, 2048),
    ):
        yield Row("selected", "selected", f"{count}_tokens", Shape(1, H, 1, M, N, 576), ("flash_mla",))


def _causal(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
    """Causal mask."""
    return q_idx >= kv_idx


def make_mask(variant: str, length: int, device: str) -> Mod:
    """Return the mask of a variant: causal, alone or within documents.

    documents: eight of one length, by arithmetic. captured_documents: these, by a captured tensor. lognormal: of
    lognormal lengths, by a captured tensor.
    """
    if variant == "causal":
        return _causal
    each = length // 8
    if variant == "documents":
        return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx // each == kv_idx // each)
    counts = torch.tensor(packed_suite.lengths("lognormal", length) if variant == "lognormal" else [each] * 8)
    ids = torch.repeat_interleave(torch.arange(len(counts)), counts).to(device, torch.int32)
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (ids[q_idx] == ids[kv_idx])


def make_dense(row: Row, peers: Sequence[str], device: str) -> Problem:
    """Return a problem of Q, K and V [B, H, M, D], forward or backward."""
    shape, backward = row.shape, row.mode == "backward"
    mask_mod, scale = make_mask(row.variant, shape.N, device), shape.D**-0.5
    spec, mask = Specification(row.variant, mask_mod), cuir.create_block_mask(mask_mod, None, None, shape.M, shape.N, device=device)
    tensors = make_tensors(shape, torch.bfloat16, device)
    if backward:
        tensors = {name: x.requires_grad_() for name, x in tensors.items()}
    q, k, v = inputs = tuple(tensors[n] for n in "QKV")
    backend, grouped = "auto" if device == "cuda" else "interpret", shape.H != shape.HK

    def ours() -> torch.Tensor:
        o: torch.Tensor = cuir.flex_attention(q, k, v, block_mask=mask, enable_gqa=grouped, backend=backend, verify="off")
        return o  # judged by this benchmark, so not verified

    pairs = count_kept_pairs(spec, q, k)
    forwards = {OURS: ours, **contenders([p for p in peers if not (backward and p == "fa3")], spec, tensors, scale)}
    if not backward:
        expected = compute_expectation(spec, q, k, v, scale)
        return Problem(forwards, judge_of(expected.error, expected.judge), "tflops", 4e-9 * shape.D * pairs)
    do = torch.randn(q.shape, device=device, generator=torch.Generator(device).manual_seed(1)).to(q.dtype)
    gradients = compute_expected_gradients(spec, q, k, v, do, scale)
    calls: dict[str, Call] = {name: prepare_gradients(forward, inputs, do, False) for name, forward in forwards.items()}
    if "fa3" in peers:
        calls["fa3"] = _defer(lambda: jax_kernels.make_call(q, k, v, do, scale))

    def judge(outputs: Any) -> tuple[float, str]:
        tensors = jax_kernels.to_torch(outputs)
        return max(gradients.errors(tensors)), gradients.judge(tensors)

    return Problem(calls, judge, "tflops", 10e-9 * shape.D * pairs)


def _defer(make: Callable[[], Call]) -> Call:
    """Return a call that is made when it is called first."""
    calls: list[Call] = []

    def call() -> object:
        if not calls:
            calls.append(make())
        return calls[0]()

    return call


def make_packed(row: Row, peers: Sequence[str], device: str) -> Problem:
    """Return a problem of causal attention within packed documents, forward or backward."""
    kind = packed_suite.Kind(True, row.variant)
    problem = packed_suite.Problem(Cell(row.variant, {}, "", row.shape), DTYPE, device, kind)
    calls = packed_suite.make_calls(problem, peers)
    if row.mode == "packed":
        return Problem(calls, problem.make_judge(), "tflops", problem.flops / 1e9)
    inputs = tuple(x.requires_grad_() for x in (problem.q, problem.k, problem.v))
    do = torch.randn(problem.q.shape, device=device, generator=torch.Generator(device).manual_seed(1)).to(problem.q.dtype)
    expected = []
    for rows in problem.list_checked_documents():
        q, k, v, g = (packed_suite.select_document(x, rows) for x in (*inputs, do))
        expected.append((rows, compute_expected_gradients(problem.spec, q, k, v, g, problem.scale)))

    def judge(outputs: Any) -> tuple[float, str]:
        alone = [(e, [packed_suite.select_document(x, rows) for x in outputs]) for rows, e in expected]
        return max(max(e.errors(grads)) for e, grads in alone), next((why for e, grads in alone if (why := e.judge(grads))), "")

    gradients = {name: prepare_gradients(forward, inputs, do, False) for name, forward in calls.items()}
    return Problem(gradients, judge, "tflops", 2.5 * problem.flops / 1e9)


def make_decode(row: Row, peers: Sequence[str], device: str) -> Problem:
    """Return a problem of one query per sequence; peers have contiguous keys."""
    problem = decode_suite.Problem(Cell(row.variant, {}, "", row.shape), DTYPE, device)
    calls = {**decode_suite.our_calls(problem, ()), **contenders(peers, problem.spec, problem.tensors, problem.scale)}
    return Problem(calls, problem.make_judge(), "gbs", problem.nbytes / 1e6, capture_graph if device == "cuda" else lambda call: call)


def make_latent(row: Row, peers: Sequence[str], device: str, dtype: torch.dtype = torch.bfloat16) -> Problem:
    """Return a problem of absorbed decoding over latent vectors."""
    B, H, _, M, N, D = row.shape.as_tuple()
    scale, page = D**-0.5, LATENT_PAGE
    g = torch.Generator(device).manual_seed(0)
    q = torch.randn(B, M, H, D, generator=g, device=device).to(dtype)
    vectors = torch.randn(B, N, 1, D, generator=g, device=device).to(dtype)
    eight = row.variant == LATENT_8_BITS
    vectors = vectors.to(torch.float8_e4m3fn).to(dtype) if eight else vectors
    lengths = torch.full((B,), N, dtype=torch.int32, device=device)
    places = torch.randperm(B * (N // page), generator=g, device=device)
    cache = torch.empty(len(places), page, 1, D, dtype=q.dtype, device=device)
    cache[places] = vectors.view(len(places), page, 1, D)
    table, own_cache = places.view(B, -1).to(torch.int32), cache.to(torch.float8_e4m3fn) if eight else cache

    def call_ours() -> torch.Tensor:
        o: torch.Tensor = cuir.attention_with_kv_cache(
            q,
            own_cache,
            None,
            cache_seqlens=lengths,
            page_table=table,
            causal=True,
            latent=LATENT,
            backend="auto" if device == "cuda" else "interpret",
            verify="off",  # judged by this benchmark
        )
        return o

    def call_flash_mla() -> Call:
        import flash_mla

        metadata, _ = flash_mla.get_mla_metadata()
        return lambda: flash_mla.flash_mla_with_kvcache(q, cache, table, lengths, LATENT, metadata, softmax_scale=scale, causal=True)[0]

    def call_fa3() -> Call:
        import fa3_fwd_interface

        parts = [x[..., columns].contiguous() for x in (q, vectors) for columns in (slice(LATENT, D), slice(LATENT))]
        return lambda: fa3_fwd_interface.flash_attn_with_kvcache(
            parts[0], *parts[2:], qv=parts[1], cache_seqlens=lengths, softmax_scale=scale, causal=True
        )

    checked = sorted({0, B // 2, B - 1})
    weights = [torch.softmax(q[b, -1].double() @ vectors[b, :, 0].double().T * scale, -1) for b in checked]
    expected = torch.stack([w @ vectors[b, :, 0, :LATENT].double() for b, w in zip(checked, weights)])

    def judge(outputs: Any) -> tuple[float, str]:
        error = float((outputs[checked, -1].double() - expected).norm() / expected.norm())
        return error, "" if error < 1e-2 else f"error {error:.1e}"

    makers = {
        "flash_mla": call_flash_mla,
        "fa3": call_fa3,
        "flashinfer": lambda: flashinfer_latent(q, cache, table, [N] * B, LATENT, scale),
    }
    calls = {OURS: call_ours, **{peer: _defer(makers[peer]) for peer in peers}}
    flops, nbytes = 2 * B * M * H * N * (D + LATENT), B * (N * D * own_cache.element_size() + 2 * M * H * (D + LATENT))
    unit, work = ("tflops", flops / 1e9) if M * H >= 64 else ("gbs", nbytes / 1e6)
    return Problem(calls, judge, unit, work, capture_graph if device == "cuda" else lambda call: call)


def make_selected(row: Row, peers: Sequence[str], device: str) -> Problem:
    """Return a problem of queries that attend to selected latent vectors, as many as the variant says, drawn at random."""
    _, H, _, M, N, D = row.shape.as_tuple()
    count, scale = int(row.variant.partition("_")[0]), D**-0.5
    g = torch.Generator(device).manual_seed(0)
    q = torch.randn(1, M, H, D, generator=g, device=device).bfloat16()
    vectors = torch.randn(1, N, 1, D, generator=g, device=device).bfloat16()
    tokens = torch.stack([torch.rand(N, generator=g, device=device).topk(count).indices.int() for _ in range(M)])

    def call_ours() -> torch.Tensor:
        o: torch.Tensor = cuir.attention_with_kv_cache(
            q,
            vectors,
            None,
            cache_seqlens=N,
            latent=LATENT,
            selected_tokens=tokens[None],
            backend="auto" if device == "cuda" else "interpret",
            verify="off",  # judged by this benchmark
        )
        return o[0]

    def call_flash_mla() -> Call:
        import flash_mla

        return lambda: flash_mla.flash_mla_sparse_fwd(q[0], vectors[0], tokens[:, None], scale, LATENT)[0]

    checked = sorted({0, M // 2, M - 1})
    chosen = [vectors[0, tokens[m].long(), 0].double() for m in checked]
    expected = torch.stack([torch.softmax(q[0, m].double() @ k.T * scale, -1) @ k[:, :LATENT] for m, k in zip(checked, chosen)])

    def judge(outputs: Any) -> tuple[float, str]:
        error = float((outputs[checked].double() - expected).norm() / expected.norm())
        return error, "" if error < 1e-2 else f"error {error:.1e}"

    calls = {OURS: call_ours, **{peer: _defer(call_flash_mla) for peer in peers}}
    return Problem(calls, judge, "tflops", 2e-9 * M * H * count * (D + LATENT), capture_graph if device == "cuda" else lambda call: call)


MAKERS: Mapping[str, Callable[[Row, Sequence[str], str], Problem]] = {
    "forward": make_dense,
    "backward": make_dense,
    "packed": make_packed,
    "packed backward": make_packed,
    "decode": make_decode,
    "latent": make_latent,
    "selected": make_selected,
}


def explain_absence(row: Row, peer: str) -> str:
    """Return why a peer cannot run, empty if it can."""
    if row.group in ("latent", "selected"):
        return "" if find_spec(LATENT_PEERS[peer]) else f"{LATENT_PEERS[peer]} is not installed: pip install tokenspeed-flashmla fa3-fwd"
    if peer == "fa3" and row.mode == "backward":
        return "" if find_spec(jax_kernels.MODULE) else f"FlashAttention-3 is not installed: pip install {jax_kernels.PACKAGE}"
    return ": ".join(not_installed(peer, "varlen" if row.group == "packed" else "forward") or ())


def in_flight_ms(call: Call) -> float:
    """Return the milliseconds of a call, of as many as take MILLISECONDS, launched without waiting."""

    def time_calls(count: int) -> float:
        began, last = time.perf_counter(), None
        for _ in range(count):
            last = call()
        jax_kernels.wait_for(last)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e3 / count

    time_calls(1)
    return time_calls(max(3, round(MILLISECONDS / time_calls(3))))


PROTOCOLS: Mapping[str, Callable[[Call], float]] = {"bursts": partial(median_ms, milliseconds=MILLISECONDS), "sustained": in_flight_ms}
PROTOCOL_TEXTS = {
    "bursts": "medians of CUDA events, flushed L2 cache",
    "sustained": "wall time of calls in flight for 100 ms, warm L2 cache",
}


def measure(row: Row, rounds: int, device: str = "cuda", protocols: Mapping[str, Callable[[Call], float]] = PROTOCOLS) -> dict[str, Any]:
    """Return a row with the entry of each contender: its error, and milliseconds and rate by protocol, or why it has none."""
    absences = {peer: why for peer in row.peers if (why := explain_absence(row, peer))}
    problem = MAKERS[row.mode](row, [peer for peer in row.peers if peer not in absences], device)
    entries: dict[str, dict[str, Any]] = {name: {} for name in problem.calls} | {peer: {"failed": why} for peer, why in absences.items()}
    for protocol, measure_ms in protocols.items():
        unseen = {"fa3"} if protocol == "bursts" and row.mode == "backward" else set()
        results = contest(
            {name: call for name, call in problem.calls.items() if name not in unseen},
            problem.judge,
            lambda ms: {},
            Timing(rounds, measure=measure_ms),
            prepared=problem.prepare,
        )
        for name, result in results.items():
            entries[name] |= {key: result[key] for key in ("error", "wrong", "failed") if key in result}
            if "milliseconds" in result:
                ms = result["milliseconds"]
                entries[name][protocol] = {"milliseconds": ms, problem.unit: round(problem.work / ms, 1)}
    return {**as_json(row), "work": problem.work, "contenders": entries}


def as_json(row: Row) -> dict[str, Any]:
    """Return what a row says of its problem."""
    return {"rows": row.group, "pass": row.mode, "variant": row.variant, "shape": list(row.shape.as_tuple()), "dtype": DTYPE}


def make_head(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the first line of a file: command, protocols, versions."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    words = command("benchmarks.newest_peers", arguments)
    return {"suite": "newest_peers", "command": words, "protocols": PROTOCOL_TEXTS, **versions(), "packages": packages}


def list_ratios(row: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Return each peer's milliseconds divided by ours, by peer and protocol."""
    entries = row["contenders"]
    ours = entries[OURS]
    return {
        (peer, protocol): entry[protocol]["milliseconds"] / ours[protocol]["milliseconds"]
        for peer, entry in entries.items()
        for protocol in PROTOCOLS
        if peer != OURS and protocol in entry and protocol in ours
    }


def describe(row: Mapping[str, Any]) -> str:
    """Return the problem of a row in words."""
    B, H, HK, _, N, D = row["shape"]
    return f"{row['pass']}, {row['variant']}, {B} x {N}, heads {H}/{HK}, head dim {D}"


def make_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines of a table: our rate, and the peers' time divided by ours, in bursts and sustained."""
    lines = []
    for row in rows:
        ours, ratios = row["contenders"][OURS], list_ratios(row)
        rates = [f"{rate:.0f}" for p in PROTOCOLS for unit, rate in ours.get(p, {}).items() if unit != "milliseconds"]
        cells = []
        for peer, entry in row["contenders"].items():
            if peer == OURS:
                continue
            reason = entry.get("wrong") or entry.get("failed")
            figures = [f"{ratios[peer, p]:.2f}" if (peer, p) in ratios else "-" for p in PROTOCOLS]
            cells.append(f"{peer}: {reason or ' / '.join(figures)}")
        lines.append([describe(row), " / ".join(rates) or ours.get("wrong") or ours.get("failed", ""), "; ".join(cells)])
    return table(["problem", "ours, TFLOP/s or GB/s, bursts / sustained", "peer's time divided by ours, bursts / sustained"], lines)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of a file: its command and versions, and the table."""
    head = rows[0]
    conditions = f"{head['device']}, driver {head['driver']}, CUDA {head['cuda']}, torch {head['torch']}, {head['date']}."
    return "\n".join(["# Beside the newest kernels", "", conditions, "", f"    {head['command']}", "", *make_table(rows[1:]), ""])


def measure_all(groups: Sequence[str], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of groups as they are measured."""
    for row in list_rows():
        if row.group in groups:
            gc.collect()
            torch.cuda.empty_cache()
            yield measure(row, rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    parser.add_argument("--table", type=Path, help="of a file that was written before")
    options = parser.parse_args(arguments)
    if options.table is not None:
        print(markdown(read_rows(options.table)))
        return 0
    from cuir.performance.timing.gpu import explain_missing_gpu

    if reason := explain_missing_gpu():
        print(f"nothing measured: {reason}", file=sys.stderr)
        return 1
    head = make_head(sys.argv[1:] if arguments is None else arguments)
    as_they_come(itertools.chain([head], measure_all(options.rows, options.rounds)), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
