"""Benchmarks: ``python -m benchmarks.run [--smoke] [NAME...]``, then ``python -m benchmarks.publish``.

Each of the modules named in `benchmarks.run.NAMES` measures one thing. What they share: `harness` (sides measured in
turn), `spread` (statistics), `result` (tables), `store` and `publish` (results on disk and
in docs/), `dcp_sides`, `peers` and `kernels` (what is measured), and `data` (what it is measured with).
"""
