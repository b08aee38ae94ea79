"""SGLang 0.5.17 as an engine: launcher, client and out-of-tree plugin."""
