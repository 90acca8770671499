"""The metadata of 3FS, and the backend that asks it, from inside."""
