"""Sums that hide their parts, in which devices may vanish at any stage (SecAgg+, Bell et al. 2020)."""
