"""What each dialect does with each field: honour, translate, ignore or refuse it."""
