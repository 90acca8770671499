"""`python -m hicache`: the command line."""

from hicache.cli.main import main

main()
