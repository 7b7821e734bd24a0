"""Time limits of verification, in seconds of processor time unless said otherwise.

A problem that takes longer is left out, or not searched further; only RUN makes a fault of it (D402).
"""

from __future__ import annotations

RUN = 20.0  # a run, by default: problems are small
SEARCHED_RUN = 2.0  # a run that searches for more turns: longer ones would exceed RUN on a slower machine
SYNCHRONISATION = {"quick": 2.0, "full": 20.0}  # a run without data for a condition
FURTHER_WAYS = 20.0  # runs of counted problems on further grids and under further schedules, at level full
TRIED_VALUES = 3.0  # all trials of special values in a function
EXPLORATION = 20.0  # all schedules of small launches, at level full; wall time
SHRINKING = 5.0  # the search for a smaller problem with the same error; wall time
SILENCE = 60.0  # a helper process without a report, before it is killed; wall time
