"""The instructions of PTX, a file a family: operands, and meaning on arrays with an element for each lane.

An entry of `instruction_table.TABLE` reads an opcode and returns its meaning, or raises UnknownForm. Nothing here knows
the machine: arrays of lanes go in, arrays come out.
"""

from . import floats as floats
from . import integers as integers
from . import logic as logic
from . import number_conversions as number_conversions
