"""Whether a backward pass computes dQ by CTAs of their own because queries have few keys. Owns that estimate, and the counting of keys that it takes.

Adding dQ up in f32 moves it five times (zeros, the additions' reads and writes, `finish`), whatever the mask; a kernel of its own reads Q, K, V and dO once more, and computes scores and
dP twice. So with few keys a query it is the faster way, with many the slower one, and the sooner so the more a score costs.
"""

from __future__ import annotations

import torch

from ..choice.device import bandwidth
from ..spec.specification import Lengths
from ..variants import TransferResult
from ..variants.lists import Lists
from .inputs import capturing, need_warm
from .made import Counting, Made
from .settings import KNOWN_LENGTHS, Settings

FEW = 4.5  # times the head dim: keys that a query visits, in blocks of 128. On an H200 (where it is 3.1) 2.5 is a gain of 5 % (128), 3.3 a loss of 6 % (96), 2.3 a gain of 2 % (256)
SHARED_OUT = 1.7  # times as many where the heads of a group would be shared out, whose dK and dV are added up, too: on an H200 4.5 is a gain of 6 % (128), 5.0 of 27 % (64)
BANDWIDTH = 3.35e12  # bytes a second, of the device that FEW is for
PRODUCTS, PLAIN = 4096, 128  # a clock of a multiprocessor: operations of the tensor core, and of others
OWN = 16  # instructions of a pair beside its score: one exponential, as long as eight others, and eight others


def few_keys(settings: Settings, data: TransferResult, made: Made | None, at: Lengths, device: torch.device, spread: bool = False) -> bool:
    """Whether the queries of a call have so few keys that dQ is better computed apart. data, made: what the mods of its forward pass captured, and its kernel takes. spread: the heads of
    a group are shared out otherwise. The first call of these lengths waits for the device, later ones take what other data had until its own is counted; in the interpreter it is False."""
    dim, score = max(int(settings.fixed[n]) for n in ("D", "DV")), settings.score  # type: ignore[arg-type]
    if device.type != "cuda" or score is None:
        return False
    if score.special:  # twice was the slower way where it was tried (a soft cap, 1024 keys, head dim 128)
        return False
    keys, own = visited(settings, data, made, at), 4 * dim / PRODUCTS + OWN / PLAIN
    if keys is None:
        return False
    return keys <= FEW * (SHARED_OUT if spread else 1) * dim * own / (own + score.plain / PLAIN) * BANDWIDTH / (
        bandwidth(device.index or 0) or BANDWIDTH
    )


def visited(settings: Settings, data: TransferResult, made: Made | None, at: Lengths) -> float | None:
    """Keys that a query visits on average, in whole blocks, of this data or, while the device has not counted it, of the last that was counted with these lengths; None if nothing tells."""
    if not isinstance(data.lists, Lists) or made is None:
        return settings.visited(at, settings.numbers(data.captured))
    if made.visited is not None:
        return made.visited
    before = settings.counted.get(at)
    if before is not None and capturing():  # where nobody may ask how far the device is
        return before
    if made.counting is None:
        need_warm("counting the blocks of a mask")
        count, blocks = made[data.lists.count], made[data.lists.list].shape[-1]
        made.counting = Counting(count[..., 1].float().mean() * (at.N / blocks))
    if before is not None and not made.counting.done():
        return before
    if len(settings.counted) >= KNOWN_LENGTHS:
        settings.counted.clear()
    made.visited = settings.counted[at] = made.counting.value()
    return made.visited


__all__ = ["few_keys", "visited"]
