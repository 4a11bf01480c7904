"""`python -m kcachefs`: the command."""

from kcachefs.cli import main

main()
