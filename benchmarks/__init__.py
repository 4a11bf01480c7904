"""Benchmarks: everything is measured in one run on one machine, in turns, so that ratios can be trusted."""
