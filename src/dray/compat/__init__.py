"""Compatibility with programs written for Ray: module aliases, absent names and arguments, `init`.

What programs import stays where Ray has it: `dray.actor`, `dray.exceptions` and their like are
files beside this folder, for type checkers too.
"""
