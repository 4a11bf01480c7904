"""What a mount must do, asked of a plain directory, of the direct engine and of the pyfuse3 engine alike."""
