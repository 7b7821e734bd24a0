"""What programs compute that no variant is, as PyTorch functions, one per file; the factory in `<name>.py` has the file's name. Owns nothing else."""
