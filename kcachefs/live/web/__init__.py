"""The page about mounts: its server, its access rules, and the same page as one file."""
