"""Attacks on FedSS's own training by its server: what P_k they find.

`privacy` attacks a run (`attacks` on the views of `seen` and `server`). `cells` are the
defences; `train` trains and attacks them.
"""
