"""Selection of machine operations: how each load, store, product and loop is done, and the property that decides it.

A *way* is a function of a step, in this package or in a target's folder. It says whether an operation may be done so, and
why. The first way that fits is recorded on the operation; printers look up the code of its name.
"""
