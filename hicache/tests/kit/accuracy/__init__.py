"""What the accuracy suite is made of: the layout of a model in slots, and the trained models. No cache is opened."""
