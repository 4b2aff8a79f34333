"""Speaks with devices and edges: tasks, chunks of blobs, uploads, routes."""
