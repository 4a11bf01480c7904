"""Packs: entries as one signed file, to carry what one host compiled to others. The format is in docs/packs.md."""
