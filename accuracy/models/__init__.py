"""Two small trained models: each of their components carries the score of one task."""
