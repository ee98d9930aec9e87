"""Programs that bring the raw data sets into the form that tff_fedss reads."""
