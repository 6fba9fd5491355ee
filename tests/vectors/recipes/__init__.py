"""The words in which the JSON says how each vector is made: functions and values of a module for all of its vectors,
and those of a section, a function that returns them, for some. What ../make.py names is common to all.
"""
