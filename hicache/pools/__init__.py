"""Where the bytes lie, and which slots are free."""
