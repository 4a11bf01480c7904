"""Mounts as people and programs ask for them: checks settings, and finds, makes and ends a mount."""
