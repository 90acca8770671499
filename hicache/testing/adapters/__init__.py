"""The adapters that ship with the kit."""
