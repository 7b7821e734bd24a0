"""PTX: how its text is read, what its instructions mean, and a machine that runs kernels and checks them.

    CUDA source --nvcc--> text --module--> Module: functions, variables, one Instruction a node, each with its place
    Instruction --isa--> meaning on arrays with an element for each lane
    launch + Module --machine--> results, findings: memories with shadows, warps, barriers, a schedule

An instruction that is not known is an error that names it and its place; nothing is skipped.
"""
