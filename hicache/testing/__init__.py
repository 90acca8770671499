"""The kit: drives any prefix cache through one adapter and holds it to the contract."""
