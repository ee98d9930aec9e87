"""Encoders of finished runs: `export` writes one; the other programs use it on images.

`embed` writes vectors, `evaluate` measures them, `neighbours` shows them. `sources` has
their common flags; `finished_runs` reads a run; `page` renders `page.html`.
"""
