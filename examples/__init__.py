"""Pages of simple code, with which the tests compare the fast code."""
