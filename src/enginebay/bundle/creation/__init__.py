"""Creates bundles: resolves requirements for the target, downloads and trims wheels, writes the archive."""
