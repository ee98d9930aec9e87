"""What the programs of all papers share."""
