"""Measuring on a GPU: problems with what they should come to, the protocol of timing, a process that may hang. Owns no search and no suite."""
