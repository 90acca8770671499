"""Two small trained models. Each task needs the data of one component of the cache."""
