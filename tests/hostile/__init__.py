"""Whoever writes to the storage without a key (T2), and storage that lies: the hostile rows of the fault matrix.

Each file is one row. Its cases go through the readers that people use (`targets`), and after each fault all CRCs,
lengths and digests that need no key are recomputed, because whatever a CRC stops never reaches seal or tag. A case
passes if a typed error comes out, or exactly the right data where the fault cannot matter, within the row's memory and
a second of CPU. pytest prints what each row tried at the end of its run.

Some rows have more cases than a quick run has time for; it takes a fixed share of them, spread evenly.
``make exhaustive ARGS=tests/hostile`` runs every one.
"""
