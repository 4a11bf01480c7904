"""Measurements. Each prints its table; ratios inside one run are what counts, on a machine that others use too."""
