"""What claims measure, by kind; the table is in `recipes.claims.measure`."""
