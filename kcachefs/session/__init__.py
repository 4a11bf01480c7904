"""A session is a program's time with a mount: the mount, the command that runs, and an account of the savings."""
