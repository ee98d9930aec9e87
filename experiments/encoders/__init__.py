"""Encoders of finished runs: export them, embed images, measure and look at them."""
