"""A virtual cache filesystem for compiled GPU kernels: one directory, stored once, bounded, shared by a whole host."""

__version__ = "0.1.0"
