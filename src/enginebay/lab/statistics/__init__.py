"""What several runs allow one to say: intervals over cycles, and whether two engines differ."""
