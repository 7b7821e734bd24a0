"""Rules of synchronisation: which accesses race, which phase a wait is for, what a wait covers.

Functions over events with places, byte ranges and proxies, and over an abstract order of them (orders.py). A machine
brings its own order: the interpreter has vector clocks, the explorer sets of events. Nothing here knows CuIR.
"""

from . import race_rules as race_rules
