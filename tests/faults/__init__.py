"""Faults under the writer: calls on files that fail, processes that are killed, writes that a crash loses, full disks.

``python -m tests.faults`` tries everything (``make torture``); the tests beside it try a fixed part of it.
"""
