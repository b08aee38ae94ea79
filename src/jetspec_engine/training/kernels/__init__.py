"""GPU kernels of the distillation, each beside a plain PyTorch twin that CPUs use and tests trust.

Triton is imported by the modules that define kernels; where it is missing, the twins run everywhere.
"""
