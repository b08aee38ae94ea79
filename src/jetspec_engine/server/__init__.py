"""The HTTP surface of the embedded engine: SGLang-native, OpenAI-compatible and JetSpec's own routes.

Knows the engine only as ``protocol.CompletionEngine``; every answer it gives is greedy (see ``decoding_rules``).
"""
