"""Programs that measure speed and memory, two things side by side in one run."""
