"""Mounts as people and programs ask for them: checked settings, and finding, making and ending a mount."""
