"""Transfers to and from object stores: parts of a file uploaded, and ranges of it fetched, several at a time."""
