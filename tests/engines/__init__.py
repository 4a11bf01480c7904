"""What a mount must do: the same tests on a plain directory, the direct engine and the pyfuse3 engine."""
