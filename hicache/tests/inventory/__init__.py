"""Tables and figures that pages are generated from: they are read from the source."""
