"""Engines move payloads between the server side and the client side of a method."""
