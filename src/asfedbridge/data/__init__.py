"""Image sets, their division among clients, and the batches a client trains on."""
