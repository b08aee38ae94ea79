"""GPU kernels of the tree round, one file each; imported only where Triton is."""
