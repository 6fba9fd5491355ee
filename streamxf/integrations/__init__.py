"""Plug-ins of other libraries, each of which is imported by whoever uses that library."""
