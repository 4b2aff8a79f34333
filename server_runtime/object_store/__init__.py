"""Blobs of a run in a bucket of an object store, for servers that share no folder."""
