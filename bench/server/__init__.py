"""Server overhead: a load generator, a fast mock upstream, and the gateways and servers to compare with."""
