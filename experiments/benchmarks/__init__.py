"""Programs that measure speed and memory, side by side in one run."""
