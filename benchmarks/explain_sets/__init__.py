"""Changes to real programs, one at a time, each with what an explanation of the misses must name."""
