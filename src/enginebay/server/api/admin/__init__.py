"""/admin/*: what an administrator may see and change."""
