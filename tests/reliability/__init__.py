"""Fault injection: runs that are killed or lose their server, finished by the same command and compared with the truth.

``python -m tests.reliability COMMAND`` runs many trials and writes them as JSON; the tests here run a few of each kind.
"""
