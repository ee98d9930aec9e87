"""LEAP: easy and diverse examples first."""
