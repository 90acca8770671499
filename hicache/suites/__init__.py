"""The suites, as they lie in the wheel; in a clone they are the folders beside this package."""
