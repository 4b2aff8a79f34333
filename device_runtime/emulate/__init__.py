"""Emulated devices: real agents in child processes with real limits."""
