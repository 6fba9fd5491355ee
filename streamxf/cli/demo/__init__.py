"""``python -m streamxf.cli.demo``: save real model weights through a chain, load them in a second process, and damage a bit to see it found."""
