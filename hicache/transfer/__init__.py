"""What moves between tiers, in which order, and who moves it. Nothing in here knows the tree."""
