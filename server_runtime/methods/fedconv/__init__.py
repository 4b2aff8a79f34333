"""FedConv."""
