"""Programs that prepare the raw data sets for tff_fedss."""
