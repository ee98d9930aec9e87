"""Attacks on FedSS's own training by its server: what P_k they find.

`privacy` attacks a run (`attacks` on what `seen` and `server` show) and writes `page`.
`cells` are the defences, which `train` trains and attacks and `views` tabulates.
"""
