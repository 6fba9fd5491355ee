"""The built-in codecs, one file each.

Nothing is imported here: the registry imports the one that a descriptor names.
"""
