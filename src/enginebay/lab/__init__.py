"""The lab: the same workload on several engines, with numbers that stand up to review. It speaks HTTP to any server."""
