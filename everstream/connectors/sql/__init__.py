"""PostgreSQL and SQLite."""
