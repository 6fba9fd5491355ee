"""The version, in the one place that names it."""

__version__ = "0.1.0"
