"""What both sides need and no wire sees: files that survive a power cut, settings, buffers."""
