"""Experiments: the simulated corpus, and later the papers' figures and tables."""
