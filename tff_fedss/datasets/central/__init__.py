"""Data without clients: labelled images, identities, sparse rows, text."""
