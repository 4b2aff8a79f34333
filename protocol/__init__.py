"""What both sides agree on: messages, topics, blobs, artifacts, errors, links."""
