"""A machine that runs the CTAs of a launch: lanes as vectors, memories with shadows, barriers, a schedule.

program.py binds instructions to functions on vectors, a basic block at a time; lane_machine.py runs blocks for the threads
that stand there, in the order of a schedule; actions_*.py touch what threads share. Engines act for threads, early or late: copy_engines.py, products.py.
"""

from . import actions_cluster as actions_cluster
from . import actions_memory as actions_memory
from . import actions_tensormap as actions_tensormap
from . import actions_warp as actions_warp
from . import actions_warpgroup as actions_warpgroup
