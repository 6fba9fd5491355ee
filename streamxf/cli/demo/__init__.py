"""``python -m streamxf.cli.demo``: real model weights through a chain.

They are saved, loaded in a second process and compared; then one stored bit is flipped, to see it found.
"""
