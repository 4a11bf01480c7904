"""A program's time with a mount: the mount it uses, the command run in it, and an account of what it saved."""
