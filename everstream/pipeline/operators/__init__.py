"""The operators that come with the library, and which of them are pure."""
