"""The pytest plugin of the suites. This module is empty, as every pytest run imports it."""
