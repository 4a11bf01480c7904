"""The tests, a folder for each layer."""
