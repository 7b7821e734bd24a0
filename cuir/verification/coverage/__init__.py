"""Coverage of scalar conditions: sides that a verification has run, and problems for the others."""
