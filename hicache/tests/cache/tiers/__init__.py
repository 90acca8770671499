"""White-box tests of what moves pages between device, host and storage."""
