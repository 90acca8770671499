"""Attacks on the storage engines and the threaded cache: a few rounds in `tox -e self`, an hour in `tox -e attack`."""
