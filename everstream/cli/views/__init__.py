"""What commands show: the terminal, the summary, the page."""
