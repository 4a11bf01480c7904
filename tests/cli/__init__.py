"""Tests of the commands, with real mounts."""
