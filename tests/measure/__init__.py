"""Measurements that are run by hand and committed under results/; not collected by pytest."""
