"""The Responses API beyond one answer: stored state, conversations, background, compaction, custom tools."""
