"""The kit, tested on its own."""
