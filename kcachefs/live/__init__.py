"""Live views of a mount for people: in a browser, in one file to send on, and in a terminal."""
