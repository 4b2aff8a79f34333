"""Examples that the server itself may use: where they come from, and how a config names them."""
