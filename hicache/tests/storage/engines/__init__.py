"""Storage engines as processes of their own: backends on them while they are killed, paused, filled and cut off."""
