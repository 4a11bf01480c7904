"""Measurements: each prints what it found, with the machine and versions it found it on."""
