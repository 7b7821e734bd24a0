"""Measurements, figures and judgements outside of `cuir bench`, run as `python -m benchmarks.NAME`.

It is a package, so that no installed one of this name shadows it.
"""
