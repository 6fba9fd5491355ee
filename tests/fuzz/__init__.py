"""Fuzzing of everything that reads bytes from outside, by coverage, under atheris (libFuzzer): ``make fuzz``.

Each target is a short module `fuzz.target_*` with three functions. `run` hands an input to streamxf and raises if it
behaves in another way than docs/format.md and docs/security.md say; `seeds` gives well-formed inputs to begin with; and
`mutate` changes an input and then makes all CRCs, digests, lengths, seals and tags right again, since nothing would get
past those otherwise. The corpus of each target lies in ``corpus/``; ``test_fuzz_corpus.py`` runs it without atheris.

``python -m tests.fuzz --help`` tells what can be chosen.
"""
