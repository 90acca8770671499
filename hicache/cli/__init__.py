"""The command `hicache` and its subcommands."""
