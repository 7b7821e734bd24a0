"""What is measured, drawn or judged apart from `cuir bench`: commands run as `python -m benchmarks.NAME`. A package, so that no installed one of this name stands before it."""
