"""Heuristic for a separate kernel for dQ, which pays where queries have few keys.

Adding dQ up in f32 moves it five times (zeros, the reads and writes of the additions, `finish`), whatever the mask. A
separate
kernel reads Q, K, V and dO once more, and computes scores and dP twice. So it is the faster way for few keys a query,
and the
slower one for many; the more a score costs, the sooner it is slower.
"""

from __future__ import annotations

import torch

from ...performance.selection.device import bandwidth
from ...spec.specification import Lengths
from ..capture.call_inputs import capturing, need_warm
from ..capture.captured_tensors import Counting, DeviceArguments
from ..masks.block_lists import Lists
from ..splicing.splice import TransferResult
from .settings import KNOWN_LENGTHS, Settings

# Keys that a query visits, in blocks of 128, as a multiple of the head dim. On an H200 (where it is 3.1) 2.5 is a gain
# of 5 % (head dim
# 128), 3.3 a loss of 6 % (96), 2.3 a gain of 2 % (256).
FEW = 4.5
# Factor where the heads of a group would be dealt to separate CTAs, whose dK and dV are added up, too: on an H200 4.5
# is a gain of 6 %
# (128), 5.0 one of 27 % (64).
SHARED_OUT = 1.7
BANDWIDTH = 3.35e12  # bytes a second, of the device that FEW is for
PRODUCTS, PLAIN = 4096, 128  # operations in a clock of a multiprocessor: of the tensor core, and others
# instructions of a pair without its score: an exponential, which takes as long as eight others, and eight others
OWN_ROWS = 16


def has_few_keys(
    settings: Settings,
    data: TransferResult,
    device_arguments: DeviceArguments | None,
    at: Lengths,
    device: torch.device,
    spread: bool = False,
) -> bool:
    """Decide whether the queries of a call have so few keys that a separate kernel computes dQ faster.

    The first call of these lengths waits for the device; later ones use the count of earlier data until their own
    arrives. In the interpreter this is False.

    Args:
        data: the captured values of the forward call's mods.
        device_arguments: the arguments that its kernel took for them.
        spread: the heads of a group would otherwise be dealt to separate CTAs.
    """
    dim, score = max(int(settings.fixed[n]) for n in ("D", "DV")), settings.score  # type: ignore[arg-type]
    if device.type != "cuda" or score is None:
        return False
    if score.special:  # computing it twice was slower when measured (a soft cap, 1024 keys, head dim 128)
        return False
    keys, cost = mean_visited_keys(settings, data, device_arguments, at), 4 * dim / PRODUCTS + OWN_ROWS / PLAIN
    if keys is None:
        return False
    return keys <= FEW * (SHARED_OUT if spread else 1) * dim * cost / (cost + score.plain / PLAIN) * BANDWIDTH / (
        bandwidth(device.index or 0) or BANDWIDTH
    )


def mean_visited_keys(settings: Settings, data: TransferResult, device_arguments: DeviceArguments | None, at: Lengths) -> float | None:
    """Return the keys that a query visits on average, in whole blocks; None if they are unknown.

    While the device has not counted those of this data, the last count for these lengths is returned.
    """
    if not isinstance(data.lists, Lists) or device_arguments is None:
        return settings.count_visited_keys(at, settings.numbers(data.captured))
    if device_arguments.visited is not None:
        return device_arguments.visited
    previous = settings.counted.get(at)
    if previous is not None and capturing():  # an event must not be queried during a capture
        return previous
    if device_arguments.counting is None:
        need_warm("counting the blocks of a mask")
        count, blocks = device_arguments.tensor(data.lists.count), device_arguments.tensor(data.lists.list).shape[-1]
        device_arguments.counting = Counting(count[..., 1].float().mean() * (at.N / blocks))
    if previous is not None and not device_arguments.counting.has_arrived():
        return previous
    if len(settings.counted) >= KNOWN_LENGTHS:
        settings.counted.clear()
    device_arguments.visited = settings.counted[at] = device_arguments.counting.value()
    return device_arguments.visited


__all__ = ["has_few_keys", "mean_visited_keys"]
