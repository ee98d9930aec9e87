"""Pages of obvious code; the tests compare the fast code with them."""
