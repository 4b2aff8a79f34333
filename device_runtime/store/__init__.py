"""What a device keeps on disk: its journal and its blobs."""
