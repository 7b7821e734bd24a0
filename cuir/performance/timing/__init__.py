"""Measurements on a GPU: problems with expected results, the protocol of timing, a supervised process."""
