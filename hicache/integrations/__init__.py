"""What puts this package below or beside an engine, without a change of the engine."""
