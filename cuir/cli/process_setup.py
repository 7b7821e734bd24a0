"""Set-up of a process that runs the interpreter.

It concerns threads, garbage collection, and user functions that do not end.
"""

from __future__ import annotations

import gc
import os


def configure_process() -> None:
    """Configure the process for the interpreter.

    Its operations are small: threads cost more than they bring unless OMP_NUM_THREADS is set, and so do frequent
    garbage collections. Functions of a user that do not end are given up.
    """
    import torch

    from ..spec import user_calls
    from .stuck_calls import give_up

    user_calls.on_stuck = give_up
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    gc.set_threshold(50_000, 20, 100)
