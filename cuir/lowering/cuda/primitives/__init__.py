"""What primitives are printed as, one file per family."""
