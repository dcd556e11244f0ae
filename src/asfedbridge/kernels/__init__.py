"""Machine code for spiking layers and images (numba), and the dispatch between it, SpikingJelly and plain torch."""
