"""What each kind of cached data decides."""
