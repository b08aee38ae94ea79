"""Forensics of a mismatch: one prompt decoded again under observation, each operation held against a slow twin.

Nothing in the product's rounds knows of this package; it watches a target from outside while one request runs.
"""
