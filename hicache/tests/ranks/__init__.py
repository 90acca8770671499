"""The worlds of ranks that suites run on, and what tells when ranks part."""
