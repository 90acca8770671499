"""What the repository tests, and how large it is: written down by `python -m hicache.tests.inventory`, and compared."""
