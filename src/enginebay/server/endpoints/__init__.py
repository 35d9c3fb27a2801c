"""One file for each group of endpoints: from a checked body to an answer."""
