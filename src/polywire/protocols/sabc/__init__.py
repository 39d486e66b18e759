"""sABC: text frames with headers, for sessions that talk both ways."""
