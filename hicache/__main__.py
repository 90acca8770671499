"""`python -m hicache`: the command line."""

from hicache.cli.main import main

if __name__ == "__main__":
    main()
