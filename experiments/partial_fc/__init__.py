"""Partial FC: very many classes over the devices of one machine."""
