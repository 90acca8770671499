"""The suites, as they lie in the wheel; in a clone they are links to the folders beside this package."""
