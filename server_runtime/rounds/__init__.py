"""The coordinator and what it makes durable."""
