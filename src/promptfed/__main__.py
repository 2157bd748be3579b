"""`python -m promptfed` is the command line."""

from promptfed.cli import main

main()
