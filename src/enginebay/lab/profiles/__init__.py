"""When requests are sent, how long it goes on, and when the figures stand still."""
