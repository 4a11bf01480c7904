"""The daemon: a supervisor that holds the mount, a worker that serves it, and how others find and reach them."""
