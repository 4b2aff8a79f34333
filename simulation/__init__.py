"""Whole fleets on this machine: simulated devices, emulated ones, data sets and how they are dealt out."""
