"""The page about mounts: its server, who may see it, and the same page as one file."""
