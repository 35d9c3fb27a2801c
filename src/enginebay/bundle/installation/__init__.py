"""Installs bundles: checks the host, unpacks the archive, builds environments and fills the model store."""
