"""`python -m hicache`: the command line."""

import sys

# Python puts the current folder first, where a file could hide a library that is imported from now on.
if not getattr(sys.flags, "safe_path", False):
    sys.path.append(sys.path.pop(0))

from hicache.cli.main import main

if __name__ == "__main__":
    main()
