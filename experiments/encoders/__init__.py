"""Encoders of finished runs: `export` writes one; the other programs use it on images.

`embed` writes vectors, `evaluate` measures them, `neighbours` shows them. `vectors` has
what they share; `page` renders `page.html`.
"""
