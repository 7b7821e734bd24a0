"""Functions that programs compute, in PyTorch, one per file; the factory in `<name>.py` has the file's name."""
