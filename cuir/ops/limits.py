"""Limits of the architectures, from the CUDA C++ programming guide (compute capabilities) and the PTX ISA. Owns no rule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    name: str
    shared_bytes: int  # a CTA's dynamic shared memory, barriers included
    register_file: int  # 32-bit registers of a multiprocessor
    threads: int  # most threads of a CTA
    cluster: int  # most CTAs of a cluster (portable)
    named_barriers: int  # hardware ids, one of which __syncthreads takes
    box_elements: int  # longest side of a bulk copy's box
    tensor_rank: int  # highest rank of a tensor map
    copy_bytes: int  # alignment of a bulk copy's rows and of a tensor's strides


TARGETS = {
    "sm_80": Target("sm_80", 163 * 1024, 65536, 1024, 1, 16, 0, 0, 16),
    "sm_90a": Target("sm_90a", 227 * 1024, 65536, 1024, 8, 16, 256, 5, 16),
}


def register_pool(threads: int) -> int:
    """Registers that the roles of a CTA of so many threads share: what it is launched with, a multiple of 8 a thread."""
    return min(255, 65536 // threads // 8 * 8) * threads
