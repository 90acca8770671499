"""The verification kit: drives any prefix cache through one adapter and checks it against the contract."""
