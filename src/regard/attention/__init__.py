"""The core: a query looks at keys and takes a mix of values."""
