"""Building records, which every view shows, from traced predictions."""
