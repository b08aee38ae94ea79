"""JetSpec engine: tree-drafted speculative decoding, its models and its servers.

This package never prints, never exits and never reads the environment: the command line does that.
"""

__version__ = "0.1.0"
