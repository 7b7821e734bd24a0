"""Measurements, each run by hand: `python -m benchmarks.NAME`. A package, so that no installed one of this name is found first."""
