"""What docs/ shows of the command line, written by the command line itself: ``make docs-session``."""
