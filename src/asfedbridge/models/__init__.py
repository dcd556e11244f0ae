"""Backbones and the Bridge. One builder per family; the kind of a client only swaps the activation."""
