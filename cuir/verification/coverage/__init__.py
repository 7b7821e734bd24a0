"""Coverage of scalar conditions: which sides of each a verification has run, and problems that run the others."""
