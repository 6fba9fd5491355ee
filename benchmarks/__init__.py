"""Benchmarks: ``python -m benchmarks.run [--smoke] [NAME...]``. Each file measures one thing; they share `harness`."""
