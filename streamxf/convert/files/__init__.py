"""Checkpoints as files of other formats: what stands where in them, and how they are written so that a kill costs
little.
"""
