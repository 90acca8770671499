"""The rules that the shape of the code is held to."""
