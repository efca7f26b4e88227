"""Compatibility with programs written for Ray: module aliases, absent names and arguments, `init`.

Modules that programs import have Ray's paths: `dray.actor`, `dray.exceptions` and others are files
in the directory above, so that type checkers find them, too.
"""
