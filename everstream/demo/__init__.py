"""What `everstream demo` runs and draws."""
