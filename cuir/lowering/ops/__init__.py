"""Emitters, one file per family of `cuir/ops`."""
