"""The contract as a model sees it: real architectures, answered from every tier."""
