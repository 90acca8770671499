"""Attacks on the storage engines and the threaded cache: a few rounds in `make test`, an hour in `tox -e attack`."""
