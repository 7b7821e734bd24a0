"""From a tree to a checked kernel: names, functions inlined, constants folded, types, capacities. Whoever runs or lowers a kernel starts from its result."""
