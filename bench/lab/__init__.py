"""Whether the lab's own figures can be trusted."""
