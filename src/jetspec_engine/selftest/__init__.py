"""Seeded faults of the embedded engine, and the tiny engine they are tried on: what proves the gate's checks.

Nothing in the product knows of this package: a fault is patched into the running engine from here.
"""
