"""`python -m longmlm` is the same as the command `longmlm`."""

from longmlm.cli import main

main()
