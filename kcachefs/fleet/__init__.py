"""Packs, entries as one signed file, and fleets, hosts that share packs in a bucket. docs/packs.md, docs/fleet.md."""
